//! What the endpoints share: the model's words and limits, and the way to the scheduler.

use crate::error::Error;
use crate::model::ModelInfo;
use crate::sampling::sampler::SamplingParams;
use crate::serve::api::completion_body::{CompletionBody, Kind};
use crate::serve::api::control_tokens;
use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::{PendingResponse, ResponseBody, Usage};
use crate::serve::batch::queue::Queue;
use crate::serve::http::auth::Auth;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::http::metrics::Metrics;
use crate::serve::tools::grammar::{CompiledGrammar, Grammars};
use crate::serve::tools::grammar_threads::GrammarThreads;
use crate::serve::tools::token_bytes::TokenBytes;
use crate::session::generation::{Echo, Generation, GenerationParams};
use crate::text::chat_template::{Conversation, Message, Template};
use crate::text::tokenizer::Tokenizer;
use axum::http::StatusCode;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One model, served.
pub(crate) struct ServerState {
    pub(crate) info: &'static ModelInfo,
    /// Positions of a slot.
    pub(crate) context: u32,
    pub(crate) slots: u32,
    pub(crate) text: Tokenizer,
    pub(crate) template: Option<Template>,
    /// How ids are chosen unless a request says otherwise.
    pub(crate) sampling: SamplingParams,
    pub(crate) grammars: Grammars,
    pub(crate) token_bytes: Arc<TokenBytes>,
    pub(crate) grammar_threads: GrammarThreads,
    pub(crate) queue: Queue,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access: Auth,
    /// Whether the device has warmed up.
    pub(crate) is_ready: AtomicBool,
    /// Other names that the model answers to.
    pub(crate) aliases: Vec<String>,
    /// When the server began, in seconds since 1970.
    pub(crate) created: u64,
}

impl ServerState {
    /// Whether `model` is what is served here. A request that names none means what there is.
    pub(crate) fn check_model(&self, fields: &mut Fields) -> Result<(), ApiError> {
        match fields.take::<String>("model")? {
            Some(model) if !self.answers_to(&model) => Err(self.unknown_model(&model)),
            _ => Ok(()),
        }
    }

    pub(crate) fn answers_to(&self, model: &str) -> bool {
        model == self.info.name || self.aliases.iter().any(|alias| alias == model)
    }

    pub(crate) fn unknown_model(&self, model: &str) -> ApiError {
        let message = format!(
            "the model here is {:?}, not {model:?}; `serve --alias {model}` would let it answer to that name",
            self.info.name
        );
        ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
    }

    /// The ids of a conversation up to where the answer begins.
    pub(crate) fn conversation(
        &self,
        messages: &[Message],
        tools: &[Value],
        variables: &Map<String, Value>,
    ) -> Result<Vec<u32>, ApiError> {
        let Some(template) = &self.template else {
            let message =
                "this model has no chat template, so it cannot chat: /v1/completions continues texts";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        };
        let conversation = Conversation { messages, tools, variables, answer: true };
        control_tokens::encode(&self.text, template, &conversation).map_err(|failure| match failure {
            Error::Usage(message) => ApiError::of("messages", message),
            failure @ Error::Runtime(_) => failure.into(),
        })
    }

    /// Has texts written after each prompt, as a completion of either kind.
    pub(crate) fn begin_texts(
        &self,
        asked: &GenerationRequest,
        prompts: Vec<Vec<u32>>,
        kind: Kind,
    ) -> Result<PendingResponse, ApiError> {
        let choices = self.check_count(prompts.len(), asked)?;
        if asked.settings.logprobs.is_some() {
            // Read here, where it may take a moment; what is not known is left out of the answer.
            let _ = self.token_bytes.all();
        }
        let (text, bytes) = (self.text.clone(), self.token_bytes.clone());
        let shape = CompletionBody::new(kind, self.info.name, text, bytes, choices, asked);
        self.begin(asked, prompts, Box::new(shape))
    }

    /// Has texts written after each prompt: as many as asked for, with seeds that count up.
    pub(crate) fn begin(
        &self,
        asked: &GenerationRequest,
        prompts: Vec<Vec<u32>>,
        shape: Box<dyn ResponseBody>,
    ) -> Result<PendingResponse, ApiError> {
        self.check_count(prompts.len(), asked)?;
        let mut texts = Vec::new();
        let usage = Usage { prompt: prompts.iter().map(Vec::len).sum(), ..Usage::default() };
        prompts.iter().try_for_each(|prompt| self.check_prompt(asked.prompt_field, prompt))?;
        let grammar = asked.grammar.as_ref().map(|grammar| self.grammars.compile(grammar)).transpose();
        let grammar = grammar.map_err(|failure| match failure {
            Error::Usage(message) => ApiError::of(asked.grammar_field, message),
            failure @ Error::Runtime(_) => failure.into(),
        })?;
        for prompt in prompts {
            for number in 0..asked.texts as u64 {
                let settings = GenerationParams {
                    seed: asked.settings.seed.wrapping_add(number),
                    ..asked.settings.clone()
                };
                let constraint = grammar.as_ref().map(CompiledGrammar::constraint);
                let end = self.info.end;
                let completion = Generation::new(Some(&self.text), end, &prompt, settings, constraint);
                let echo = asked.echo.then(|| Echo::new(&self.text, asked.settings.logprobs));
                texts.push((prompt.clone(), completion, echo));
            }
        }
        let left = texts.len();
        Ok(PendingResponse { shape, updates: self.queue.submit(texts)?, left, texts: asked.texts, usage })
    }

    /// How many texts so many prompts ask for: before anything is made of any of them, as a small body can name many.
    pub(crate) fn check_count(&self, prompts: usize, asked: &GenerationRequest) -> Result<usize, ApiError> {
        let (texts, most) = (prompts.saturating_mul(asked.texts), self.queue.most());
        if texts > most {
            let param = if prompts > most { "prompt" } else { "n" };
            return Err(ApiError::of(param, format!("{texts} texts at once; the server takes {most}")));
        }
        Ok(texts)
    }

    /// A prompt is read whole or not at all.
    pub(crate) fn check_prompt(&self, field: &str, prompt: &[u32]) -> Result<(), ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::of(field, "the prompt is empty, and there is nothing to go on from"));
        }
        if prompt.len() > self.context as usize {
            let message = format!(
                "the prompt has {} tokens, and the context here is {}; `serve --ctx-size` goes up to {}",
                prompt.len(),
                self.context,
                self.info.context
            );
            return Err(ApiError::of(field, message).code("context_length_exceeded"));
        }
        match prompt.iter().find(|&&id| id >= self.info.vocabulary) {
            Some(id) => {
                let message = format!("token {id} is outside the vocabulary of {}", self.info.vocabulary);
                Err(ApiError::of(field, message))
            }
            None => Ok(()),
        }
    }
}
