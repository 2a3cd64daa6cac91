//! Errors about the user's input as data: what is wrong, where, and how to fix it. The command line renders
//! them.

use serde::Serialize;

/// An error about the user's input. The message has no trailing full stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// A stable identifier such as `F0207`. The hundreds name the stage: 1 checkpoint, 2 configuration, 3
    /// tensors, 4 graph, 5 plan, 6 output.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// Location, if it is in a text file.
    pub place: Option<Place>,
    /// Reasons and fixes, one sentence each.
    pub notes: Vec<String>,
}

/// A location in a text file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// File name in the checkpoint, such as `config.json`.
    pub file: String,
    /// Byte range in the file.
    pub span: std::ops::Range<usize>,
    /// Label of the marked range.
    pub label: String,
}

impl Diagnostic {
    /// An error without a location.
    pub fn new(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic { code, message: message.into(), place: None, notes: Vec::new() }
    }

    /// Sets the location.
    pub fn at(mut self, file: &str, span: std::ops::Range<usize>, label: impl Into<String>) -> Diagnostic {
        self.place = Some(Place { file: file.to_owned(), span, label: label.into() });
        self
    }

    /// Adds a reason or a fix.
    pub fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}] {}", self.code, self.message)?;
        if let Some(place) = &self.place {
            write!(f, " ({}: {})", place.file, place.label)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

impl std::error::Error for Diagnostic {}
