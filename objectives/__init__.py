"""What is good: metrics, budgets, Pareto front, score and knee. Pure numpy, no I/O, no clock."""
