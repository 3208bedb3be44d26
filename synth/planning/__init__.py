"""What the program draws before a writer is asked: names, drafts of profiles, plans of events."""
