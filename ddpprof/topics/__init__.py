"""Topics: each module measures one aspect of a job, and contains the rules and the texts for this aspect."""
