"""Before the run: read a recipe, check it, show what it means, start it. Imports no torch: an answer takes under a second."""
