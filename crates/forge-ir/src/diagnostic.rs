//! A fault in what the user gave us, as data: what is wrong, where, and the way out. Rendered by the command line.

use serde::Serialize;

/// One fault. The message is a sentence about the user's file in the user's words, without a trailing stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// A stable identifier, `F0207`; the hundreds name the stage (1 checkpoint, 2 configuration, 3 tensors,
    /// 4 graph, 5 plan, 6 output).
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// Where, if it is in a file.
    pub place: Option<Place>,
    /// Reasons and ways out, one sentence each.
    pub notes: Vec<String>,
}

/// A place in one of the checkpoint's text files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file's name inside the checkpoint, `config.json`.
    pub file: String,
    /// Byte range within the file.
    pub span: std::ops::Range<usize>,
    /// What to write under the marked range.
    pub label: String,
}

impl Diagnostic {
    /// A fault without a place.
    pub fn new(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic { code, message: message.into(), place: None, notes: Vec::new() }
    }

    /// Says where.
    pub fn at(mut self, file: &str, span: std::ops::Range<usize>, label: impl Into<String>) -> Diagnostic {
        self.place = Some(Place { file: file.to_owned(), span, label: label.into() });
        self
    }

    /// Adds a reason or a way out.
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
