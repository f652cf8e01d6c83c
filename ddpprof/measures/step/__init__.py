"""Split of a step's time into its parts."""
