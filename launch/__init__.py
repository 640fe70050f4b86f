"""Before the run: read a recipe, check it, show what it means, start it. Imports no torch: every answer takes under a second."""
