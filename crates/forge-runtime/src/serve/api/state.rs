//! Server state shared by all endpoints.

use crate::serve::api::completion_body::{CompletionBody, CompletionKind};
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
use forge_device::error::Error;
use forge_device::model::ModelInfo;
use forge_device::sampling::sampler::SamplingParams;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The state of a server.
pub(crate) struct ServerState {
    pub(crate) info: &'static ModelInfo,
    /// Context length of a slot in tokens.
    pub(crate) context: u32,
    pub(crate) slots: u32,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<Template>,
    /// Default sampling parameters.
    pub(crate) sampling: SamplingParams,
    pub(crate) grammars: Grammars,
    pub(crate) token_bytes: Arc<TokenBytes>,
    pub(crate) grammar_threads: GrammarThreads,
    pub(crate) queue: Queue,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) auth: Auth,
    /// Whether warm-up is done.
    pub(crate) is_ready: AtomicBool,
    /// Additional model names.
    pub(crate) aliases: Vec<String>,
    /// Start time, in seconds since the Unix epoch.
    pub(crate) created: u64,
}

impl ServerState {
    /// Checks the `model` field, if present.
    pub(crate) fn check_model(&self, fields: &mut Fields) -> Result<(), ApiError> {
        match fields.take::<String>("model")? {
            Some(model) if !self.accepts_model(&model) => Err(self.unknown_model(&model)),
            _ => Ok(()),
        }
    }

    pub(crate) fn accepts_model(&self, model: &str) -> bool {
        model == self.info.name || self.aliases.iter().any(|alias| alias == model)
    }

    pub(crate) fn unknown_model(&self, model: &str) -> ApiError {
        let message = format!(
            "unknown model {model:?}: this server has {:?}; start it with --alias {model} to accept that name",
            self.info.name
        );
        ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
    }

    /// The token ids of a conversation, up to where the reply starts.
    pub(crate) fn conversation(
        &self,
        messages: &[Message],
        tools: &[Value],
        variables: &Map<String, Value>,
    ) -> Result<Vec<u32>, ApiError> {
        let Some(template) = &self.template else {
            let message = "this model has no chat template: use /v1/completions";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        };
        let conversation = Conversation { messages, tools, variables, add_generation_prompt: true };
        control_tokens::encode(&self.tokenizer, template, &conversation).map_err(|failure| match failure {
            Error::Usage(message) => ApiError::of("messages", message),
            failure @ Error::Runtime(_) => failure.into(),
        })
    }

    /// Starts the generations of a (chat) completion request.
    pub(crate) fn begin_choices(
        &self,
        request: &GenerationRequest,
        prompts: Vec<Vec<u32>>,
        kind: CompletionKind,
    ) -> Result<PendingResponse, ApiError> {
        let choices = self.check_count(prompts.len(), request)?;
        if request.params.logprobs.is_some() {
            // Loaded here, on a blocking thread. Errors are ignored: unknown bytes are left out of the
            // response.
            let _ = self.token_bytes.all();
        }
        let (text, bytes) = (self.tokenizer.clone(), self.token_bytes.clone());
        let shape = CompletionBody::new(kind, self.info.name, text, bytes, choices, request);
        self.begin(request, prompts, Box::new(shape))
    }

    /// Starts `n` generations for each prompt, with consecutive seeds.
    pub(crate) fn begin(
        &self,
        request: &GenerationRequest,
        prompts: Vec<Vec<u32>>,
        shape: Box<dyn ResponseBody>,
    ) -> Result<PendingResponse, ApiError> {
        self.check_count(prompts.len(), request)?;
        let mut texts = Vec::new();
        let usage = Usage { prompt_tokens: prompts.iter().map(Vec::len).sum(), ..Usage::default() };
        prompts.iter().try_for_each(|prompt| self.check_prompt(request.prompt_field, prompt))?;
        let grammar = request.grammar.as_ref().map(|grammar| self.grammars.compile(grammar)).transpose();
        let grammar = grammar.map_err(|failure| match failure {
            Error::Usage(message) => ApiError::of(request.grammar_field, message),
            failure @ Error::Runtime(_) => failure.into(),
        })?;
        for prompt in prompts {
            for number in 0..request.choices as u64 {
                let settings = GenerationParams {
                    seed: request.params.seed.wrapping_add(number),
                    ..request.params.clone()
                };
                let constraint = grammar.as_ref().map(CompiledGrammar::constraint);
                let end = self.info.eos;
                let completion = Generation::new(Some(&self.tokenizer), end, &prompt, settings, constraint);
                let echo = request.echo.then(|| Echo::new(&self.tokenizer, request.params.logprobs));
                texts.push((prompt.clone(), completion, echo));
            }
        }
        let left = texts.len();
        Ok(PendingResponse {
            body: shape,
            updates: self.queue.submit(texts)?,
            remaining: left,
            choices: request.choices,
            usage,
        })
    }

    /// Checks and returns the number of sequences. Called before anything is allocated, because a small body
    /// can name many prompts.
    pub(crate) fn check_count(&self, prompts: usize, request: &GenerationRequest) -> Result<usize, ApiError> {
        let (texts, most) = (prompts.saturating_mul(request.choices), self.queue.capacity());
        if texts > most {
            let param = if prompts > most { "prompt" } else { "n" };
            return Err(ApiError::of(
                param,
                format!("{texts} completions exceed the maximum of {most} (--slots plus --queue)"),
            ));
        }
        Ok(texts)
    }

    /// Checks the length and the tokens of a prompt.
    pub(crate) fn check_prompt(&self, field: &str, prompt: &[u32]) -> Result<(), ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::of(field, "the prompt is empty"));
        }
        if prompt.len() > self.context as usize {
            let message = format!(
                "the prompt has {} tokens, the context length is {}; `serve --ctx-size` supports up to {}",
                prompt.len(),
                self.context,
                self.info.context
            );
            return Err(ApiError::of(field, message).code("context_length_exceeded"));
        }
        match prompt.iter().find(|&&id| id >= self.info.vocabulary) {
            Some(id) => {
                let message =
                    format!("token id {id} is not below the vocabulary size {}", self.info.vocabulary);
                Err(ApiError::of(field, message))
            }
            None => Ok(()),
        }
    }
}
