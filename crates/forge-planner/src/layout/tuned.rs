//! Layouts that were measured on a device: the table that a program's `tune` writes, as plans take it.
//!
//! An entry names its subject; one that names none is of a projection, as all were in older tables. What a table says beside
//! subjects and knobs, times and names, is for people. What forge would not lay out so is refused.

use crate::layout::tuning_key::{Layout, TuningKey};
use crate::plan::Plan;
use forge_kernels::spec::{AttentionKnobs, ExpertsKnobs, Knobs};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Tuned {
    /// What was measured on, for people.
    pub device: String,
    layouts: Vec<Measured>,
}

/// A subject, and how it is laid out.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Entry")]
struct Measured {
    #[serde(flatten)]
    subject: TuningKey,
    knobs: Layout,
}

/// The same as a table has it.
#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    subject: Kind,
    #[serde(flatten)]
    said: Map<String, Value>,
}

/// What an entry is of.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Projection,
    Experts,
    Attention,
}

impl Entry {
    /// What is said of the subject.
    fn subject<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(Value::Object(self.said.clone())).map_err(|error| error.to_string())
    }

    fn knobs<T: DeserializeOwned>(&self) -> Result<T, String> {
        let knobs = self.said.get("knobs").ok_or("missing field `knobs`")?;
        T::deserialize(knobs).map_err(|error| error.to_string())
    }
}

impl TryFrom<Entry> for Measured {
    type Error = String;

    fn try_from(entry: Entry) -> Result<Measured, String> {
        let (subject, knobs) = match entry.subject {
            Kind::Projection => {
                let knobs = entry.knobs::<Knobs>()?;
                (TuningKey::Projection(entry.subject()?), Layout::Projection(knobs))
            }
            Kind::Experts => {
                let knobs = entry.knobs::<ExpertsKnobs>()?;
                (TuningKey::Experts(entry.subject()?), Layout::Experts(knobs))
            }
            Kind::Attention => {
                let knobs = entry.knobs::<AttentionKnobs>()?;
                (TuningKey::Attention(entry.subject()?), Layout::Attention(knobs))
            }
        };
        if subject.tried().contains(&knobs) {
            return Ok(Measured { subject, knobs });
        }
        Err(format!("forge does not lay {} out as {}", subject.describe(), knobs.name(subject.rows())))
    }
}

impl Tuned {
    /// Reads a table; or what is wrong with it, and in which line.
    pub fn parse(text: &str) -> Result<Tuned, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The layout of a subject, if it was measured.
    pub fn layout(&self, subject: &TuningKey) -> Option<Layout> {
        self.layouts.iter().find(|measured| measured.subject == *subject).map(|measured| measured.knobs)
    }

    /// Of how many subjects, and of how many of them a plan has any.
    pub fn used(&self, plan: &Plan) -> (usize, usize) {
        let of_plan = plan.kernels.iter().filter_map(|kernel| TuningKey::of(&kernel.spec));
        let of_plan: Vec<TuningKey> = of_plan.map(|(subject, _)| subject).collect();
        let used = self.layouts.iter().filter(|measured| of_plan.contains(&measured.subject)).count();
        (self.layouts.len(), used)
    }
}
