//! Layouts that were measured on a device: the table that a program's `tune` writes, as plans take it.
//!
//! What a layout is chosen by is a [`Product`]; kernels that make the same product have the same layout. What the table says
//! beside products and knobs, times and names, is for people.

use crate::plan::Plan;
use forge_ir::Format;
use forge_kernels::Spec;
use forge_kernels::spec::{Epilogue, Knobs, Project, Rows};
use serde::{Deserialize, Deserializer, Serialize};

/// A product of a matrix with rows: all that its layout is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Product {
    /// How many rows it is made for.
    pub rows: Rows,
    /// Of the matrix.
    #[serde(deserialize_with = "format")]
    pub format: Format,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Whether something is left for each threadgroup: squares, or a candidate.
    pub leaves: bool,
}

impl Product {
    /// That of a projection.
    pub fn of(project: &Project) -> Product {
        let leaves = matches!(project.epilogue, Epilogue::AddSquares(_) | Epilogue::Best);
        let Project { rows, format, outputs, inputs, .. } = *project;
        Product { rows, format, outputs, inputs, leaves }
    }
}

/// The format of that name.
fn format<'a, D: Deserializer<'a>>(from: D) -> Result<Format, D::Error> {
    let name = String::deserialize(from)?;
    Format::from_name(&name).ok_or_else(|| serde::de::Error::custom(format!("there is no format {name}")))
}

/// The table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Tuned {
    /// What was measured on, for people.
    pub device: String,
    layouts: Vec<Layout>,
}

/// A product, and how it is laid out.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Entry")]
struct Layout {
    product: Product,
    knobs: Knobs,
}

/// The same as a table has it.
#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    product: Product,
    knobs: Knobs,
}

impl TryFrom<Entry> for Layout {
    type Error = String;

    fn try_from(Entry { product, knobs }: Entry) -> Result<Layout, String> {
        let Product { rows, format, inputs, leaves, .. } = product;
        if Knobs::tried(rows, format, inputs, leaves).contains(&knobs) {
            return Ok(Layout { product, knobs });
        }
        Err(format!("forge lays no product of {inputs} columns in {format} out as {}", knobs.name(rows)))
    }
}

impl Tuned {
    /// Reads a table; or what is wrong with it, and in which line.
    pub fn parse(text: &str) -> Result<Tuned, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The layout of a product, if it was measured.
    pub fn knobs(&self, product: &Product) -> Option<Knobs> {
        self.layouts.iter().find(|layout| layout.product == *product).map(|layout| layout.knobs)
    }

    /// Of how many products, and of how many of them a plan has any.
    pub fn used(&self, plan: &Plan) -> (usize, usize) {
        let has = |layout: &&Layout| {
            plan.kernels.iter().any(
                |kernel| matches!(&kernel.spec, Spec::Project(project) if Product::of(project) == layout.product),
            )
        };
        (self.layouts.len(), self.layouts.iter().filter(has).count())
    }
}
