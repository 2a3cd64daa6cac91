//! The sampling options of `generate` and `chat`.

use clap::Args;
use forge_device::error::Error;
use forge_device::sampling::sampler::SamplingParams;
use std::time::{SystemTime, UNIX_EPOCH};

/// Sampling parameters. The defaults are in the model's generation_config.json.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling [default: the model's generation_config.json]")]
pub(crate) struct SamplingArguments {
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Top-k sampling; 0 disables it
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(crate) top_k: Option<usize>,
    /// Locally typical sampling; 1 disables it
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) typical_p: Option<f32>,
    /// Nucleus sampling; 1 disables it
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Minimum probability relative to the most probable token; 0 disables it
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Repetition penalty over prompt and output; 1 disables it
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Presence penalty
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Frequency penalty
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Bias added to the logit of a token id (repeatable)
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Random seed [default: random, printed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
}

/// Parses `ID=BIAS`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| "expected a token id and a number, such as 12=-3.5".to_owned())
}

impl SamplingArguments {
    /// The parameters; `defaults` are the model's.
    pub(crate) fn sampling(
        &self,
        defaults: SamplingParams,
        vocabulary: u32,
    ) -> Result<SamplingParams, Error> {
        if let Some((id, _)) = self.logit_bias.iter().find(|(id, _)| *id >= vocabulary) {
            let message =
                format!("--logit-bias: token id {id} is not below the vocabulary size {vocabulary}");
            return Err(Error::Usage(message));
        }
        let sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            typical_p: self.typical_p.unwrap_or(defaults.typical_p),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            bias: self.logit_bias.clone(),
        };
        sampling.check().map_err(Error::Usage)?;
        Ok(sampling)
    }

    /// The given seed, or the time in nanoseconds.
    pub(crate) fn seed(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        self.seed.unwrap_or_else(now)
    }
}
