"""The backward pass: dQ, dK and dV of attention."""
