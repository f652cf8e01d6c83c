"""Topics. Each module measures one aspect of a job, and contains the rules and the text for this aspect."""
