"""The SQLite log of decisions and outcomes."""
