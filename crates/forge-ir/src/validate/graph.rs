//! The validated graph.

use crate::diagnostic::Diagnostic;
use crate::graph::draft::{Apply, Body, Draft};
use crate::validate::check::Check;
use crate::validate::shape_check::widths;
use std::ops::Deref;

/// A draft that has passed [`Draft::validate`]. Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph(Draft);

impl Deref for Graph {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.0
    }
}

impl Draft {
    /// Checks the guarantees of the crate documentation. Returns the graph, or all errors.
    pub fn validate(self) -> Result<Graph, Vec<Diagnostic>> {
        let mut check = Check { draft: &self, faults: Vec::new() };
        check.bodies();
        if check.faults.is_empty() {
            check.applications();
            check.everything_is_used();
            check.states();
            check.per_layer_inputs();
        }
        let faults = check.faults;
        if faults.is_empty() { Ok(Graph(self)) } else { Err(faults) }
    }
}

impl Graph {
    /// The body of an application.
    pub fn body(&self, apply: &Apply) -> &Body {
        &self.bodies[apply.body.0]
    }

    /// Prologue, layers and epilogue in order of evaluation.
    pub fn applications(&self) -> impl Iterator<Item = &Apply> {
        std::iter::once(&self.prologue).chain(&self.layers).chain(std::iter::once(&self.epilogue))
    }

    /// Widths of a body's values, starting with its input.
    pub fn widths(&self, body: &Body) -> Vec<usize> {
        widths(body)
    }
}
