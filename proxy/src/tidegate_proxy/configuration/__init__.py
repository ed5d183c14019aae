"""The configuration file: its fields, reading it, checking what it names, what a change means; what is in force."""
