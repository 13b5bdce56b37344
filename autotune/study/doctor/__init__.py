"""What is looked at before a machine is left alone with a study: one module a theme."""
