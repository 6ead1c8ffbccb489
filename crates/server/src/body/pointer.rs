//! Errors with pointers into the body.

use api::FieldError;

/// Limit of the errors in one response. A malicious body can have an error every few bytes.
pub(super) const ERRORS_MAX: usize = 32;
/// Maximum bytes of a name in a pointer. A pointer contains only the start of a longer name, followed by an ellipsis.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// List of errors, together with one location in the body. A new error in the list gets a pointer to this location.
pub(super) struct Errors<'e> {
    list: &'e mut Vec<FieldError>,
    location: Option<Location<'e>>,
}

#[derive(Clone, Copy)]
struct Location<'e> {
    parent: Option<&'e Location<'e>>,
    name: &'e str,
}

impl<'e> Errors<'e> {
    /// Wraps a list of errors. The location is the root of the body.
    pub(super) fn new(list: &'e mut Vec<FieldError>) -> Self {
        Errors { list, location: None }
    }

    pub(super) fn borrow(&mut self) -> Errors<'_> {
        Errors { list: self.list, location: self.location }
    }

    /// Returns the same list of errors, with the location of the field `name` below this location.
    pub(super) fn at<'s>(&'s mut self, name: &'s str) -> Errors<'s> {
        Errors { list: self.list, location: Some(Location { parent: self.location.as_ref(), name }) }
    }

    /// Adds an error with a pointer to this location to the list, unless the list is full.
    pub(super) fn note(&mut self, error: FieldError) {
        if !self.is_full() {
            let pointer = Some(self.pointer());
            self.list.push(FieldError { pointer, ..error });
        }
    }

    /// Returns true if the list has an error at this location.
    pub(super) fn has_error_here(&self) -> bool {
        let here = self.pointer();
        self.list.iter().any(|error| error.pointer.as_ref() == Some(&here))
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        if let Some(location) = &self.location {
            location.write(&mut pointer);
        }
        pointer
    }

    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= ERRORS_MAX
    }
}

impl Location<'_> {
    /// Writes the location as a JSON Pointer (RFC 6901), and shortens long names.
    fn write(&self, pointer: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(pointer);
        }
        pointer.push('/');
        let shown = &self.name[..self.name.floor_char_boundary(NAME_BYTES_MAX)];
        for character in shown.chars() {
            match character {
                '~' => pointer.push_str("~0"),
                '/' => pointer.push_str("~1"),
                other => pointer.push(other),
            }
        }
        if shown.len() < self.name.len() {
            pointer.push('…');
        }
    }
}
