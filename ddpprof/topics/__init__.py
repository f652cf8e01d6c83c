"""Topics: each module measures one aspect of a job, and contains its rules and its text."""
