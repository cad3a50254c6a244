"""What a learner holds in a notebook: cards, checks, predictions, progress."""
