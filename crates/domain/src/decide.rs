//! What follows from a schedule's state and an event, as values: the executor in `scheduler` carries it out.
