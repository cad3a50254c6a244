"""The lesson machine: exercises cut from the stages, checkers, predictions, figures and progress."""
