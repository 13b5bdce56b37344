"""What is remembered: studies, trials and samples in one SQL database, beside Optuna."""
