"""Reads run records, and nothing else: load, tables, figures. Imports no torch."""
