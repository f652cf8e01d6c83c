"""Steps: how their time is divided, and how much communication is hidden."""
