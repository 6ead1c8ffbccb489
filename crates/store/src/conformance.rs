//! What every engine must do, as tests that take a fresh store.
