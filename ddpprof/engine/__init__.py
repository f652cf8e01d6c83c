"""What all questions about a job share: how numbers are declared, and what is derived from the declarations."""
