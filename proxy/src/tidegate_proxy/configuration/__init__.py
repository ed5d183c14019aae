"""Configuration file: its fields, the reader, checks of names, effects of a change, current settings."""
