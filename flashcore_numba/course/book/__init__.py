"""Lessons as text become notebooks: numbers and figures are woven in."""
