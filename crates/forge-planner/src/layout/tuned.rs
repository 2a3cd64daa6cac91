//! Tuning results: the table of measured layouts that a program's `tune` writes.
//!
//! An entry without `subject` is a projection, as in older tables. Fields besides the key and the knobs, such
//! as times and names, are informational. Layouts that forge does not support are rejected.

use crate::layout::tuning_key::{Layout, TuningKey};
use crate::plan::Plan;
use forge_kernels::spec::{AttentionKnobs, ExpertsKnobs, Knobs};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Tuned {
    /// Device of the measurements, informational.
    pub device: String,
    layouts: Vec<Measured>,
}

/// A tuning key and its measured layout.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Entry")]
struct Measured {
    #[serde(flatten)]
    subject: TuningKey,
    knobs: Layout,
}

/// An entry as stored in the table.
#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    subject: Kind,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// Kind of an entry's key.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Projection,
    Experts,
    Attention,
}

impl Entry {
    /// Parses the key.
    fn subject<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(Value::Object(self.fields.clone())).map_err(|error| error.to_string())
    }

    fn knobs<T: DeserializeOwned>(&self) -> Result<T, String> {
        let knobs = self.fields.get("knobs").ok_or("missing field `knobs`")?;
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
        Err(format!("unsupported layout of {}: {}", subject.describe(), knobs.name(subject.rows())))
    }
}

impl Tuned {
    /// Parses a table; errors name the line.
    pub fn parse(text: &str) -> Result<Tuned, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The measured layout for a key, if any.
    pub fn layout(&self, subject: &TuningKey) -> Option<Layout> {
        self.layouts.iter().find(|measured| measured.subject == *subject).map(|measured| measured.knobs)
    }

    /// Number of entries, and number of entries that a plan uses.
    pub fn used(&self, plan: &Plan) -> (usize, usize) {
        let of_plan = plan.kernels.iter().filter_map(|kernel| TuningKey::of(&kernel.spec));
        let of_plan: Vec<TuningKey> = of_plan.map(|(subject, _)| subject).collect();
        let used = self.layouts.iter().filter(|measured| of_plan.contains(&measured.subject)).count();
        (self.layouts.len(), used)
    }
}
