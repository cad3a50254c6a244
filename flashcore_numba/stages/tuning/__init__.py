"""Tables that say which stage or tile a problem gets; made from recorded measurements."""
