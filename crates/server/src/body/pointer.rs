//! Errors with the place in the body that they are about.

use api::FieldError;

/// No answer lists more than this many errors: a body can be made to have one for every few bytes.
pub(super) const ERRORS_MAX: usize = 32;

/// A list of errors, seen from one place in the body. Pointers are written only when there is an error.
pub(super) struct Errors<'e> {
    list: &'e mut Vec<FieldError>,
    place: Option<Place<'e>>,
}

#[derive(Clone, Copy)]
struct Place<'e> {
    parent: Option<&'e Place<'e>>,
    name: &'e str,
}

impl<'e> Errors<'e> {
    /// Seen from the body as a whole.
    pub(super) fn new(list: &'e mut Vec<FieldError>) -> Self {
        Errors { list, place: None }
    }

    pub(super) fn borrow(&mut self) -> Errors<'_> {
        Errors { list: self.list, place: self.place }
    }

    /// Seen from the field `name` of this place.
    pub(super) fn at<'s>(&'s mut self, name: &'s str) -> Errors<'s> {
        Errors { list: self.list, place: Some(Place { parent: self.place.as_ref(), name }) }
    }

    /// Adds an error, unless there are enough; its pointer is set here.
    pub(super) fn note(&mut self, error: FieldError) {
        if !self.are_many() {
            let pointer = Some(self.pointer());
            self.list.push(FieldError { pointer, ..error });
        }
    }

    /// Whether something was noted at this place.
    pub(super) fn are_here(&self) -> bool {
        let here = self.pointer();
        self.list.iter().any(|error| error.pointer.as_ref() == Some(&here))
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        if let Some(place) = &self.place {
            place.write(&mut pointer);
        }
        pointer
    }

    pub(super) fn are_many(&self) -> bool {
        self.list.len() >= ERRORS_MAX
    }
}

impl Place<'_> {
    /// RFC 6901.
    fn write(&self, pointer: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(pointer);
        }
        pointer.push('/');
        for character in self.name.chars() {
            match character {
                '~' => pointer.push_str("~0"),
                '/' => pointer.push_str("~1"),
                other => pointer.push(other),
            }
        }
    }
}
