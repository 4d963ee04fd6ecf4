"""What is seen of a job: plain text, HTML, a terminal, a notebook cell. All are made from one ``JobState``."""
