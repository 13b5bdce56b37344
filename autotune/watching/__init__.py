"""A study followed by those who do not sit before it: files, messages and a service manager."""
