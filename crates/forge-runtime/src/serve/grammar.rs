//! Grammars: text that has to be JSON, to follow a schema, to match an expression.
//!
//! llguidance keeps, for one text, which bytes may come next, and gives the ids whose bytes they are. What an id's bytes
//! are is read from `tokenizer.json`. Making that ready takes a moment and is done when the first grammar is asked for.

use super::super::completion::Constraint;
use super::super::failure::Failure;
use super::super::model::Info;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// What a text has to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Grammar {
    /// JSON that is valid against a schema.
    Schema(Value),
    /// Text that an expression matches as a whole.
    Regex(String),
    /// Text of a grammar in Lark's notation.
    Lark(String),
    /// Any text; after this opening, which may be a single id, text of a grammar. After no opening the whole text is of the
    /// grammar, if its first id is.
    After {
        /// As text.
        opening: &'static str,
        /// As an id.
        opening_id: Option<u32>,
        /// In Lark's notation.
        grammar: String,
    },
}

/// Makes constraints out of grammars.
pub(super) struct Grammars {
    tokenizer: PathBuf,
    info: Info,
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    /// For the model's tokenizer, `tokenizer.json`.
    pub(super) fn new(tokenizer: PathBuf, info: Info) -> Grammars {
        Grammars { tokenizer, info, factory: OnceLock::new() }
    }

    /// A constraint for one text; [`Failure::Misuse`] if the grammar is not understood.
    pub(super) fn constraint(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, Failure> {
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(|error| {
            Failure::misuse(format!("this model's tokenizer leaves no way to follow a grammar: {error}"))
        })?;
        let compiled = match grammar.clone() {
            Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(with_few_blanks(schema)),
            Grammar::Regex(expression) => TopLevelGrammar::from_regex(&expression),
            Grammar::Lark(grammar) | Grammar::After { grammar, .. } => TopLevelGrammar::from_lark(grammar),
        };
        let mut matcher = Matcher::new(factory.create_parser(compiled));
        // Some grammars turn out to have no beginning only when one is asked for.
        let error = matcher.get_error().or_else(|| {
            let begins = matcher.compute_mask_or_eos().is_ok_and(|mask| !mask.is_zero());
            (!begins).then(|| "no text of it has a beginning".to_owned())
        });
        match (error, grammar) {
            (Some(error), _) => Err(Failure::misuse(format!("the grammar is not understood: {error}"))),
            (None, &Grammar::After { opening, opening_id, .. }) => {
                let environment = factory.tok_env().clone();
                Ok(Box::new(Waiting {
                    opening,
                    opening_id,
                    environment,
                    written: Vec::new(),
                    is_open: None,
                    matcher,
                }))
            }
            (None, _) => Ok(Box::new(Following(matcher))),
        }
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let text = std::fs::read(&self.tokenizer).map_err(|error| error.to_string())?;
        let tokenizer: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let mut bytes = token_bytes_from_tokenizer_json(&tokenizer).map_err(|error| error.to_string())?;
        // Ids that the head has and the tokenizer does not mean nothing, and are never allowed.
        bytes.resize(self.info.vocabulary as usize, Vec::new());
        let end = self.info.end.first().copied();
        let info = TokRxInfo::new(self.info.vocabulary, end.unwrap_or(llguidance::toktrie::INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &bytes);
        if !self.info.end.is_empty() {
            trie = trie.with_eos_tokens(self.info.end);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(factory)
    }
}

/// A schema whose JSON has a blank, or a line and its indentation, between tokens. Where as many may stand as one likes,
/// a small model may like nothing else until its text is cut.
pub(super) fn with_few_blanks(schema: Value) -> Value {
    const OPTIONS: &str = "x-guidance";
    match schema {
        Value::Object(mut fields) => {
            let options = fields.entry(OPTIONS).or_insert_with(|| json!({}));
            if let Value::Object(options) = options {
                options.entry("whitespace_pattern").or_insert_with(|| json!(r" |\n {0,40}|\n\t{0,10}"));
            }
            Value::Object(fields)
        }
        other => other,
    }
}

/// A text on its way through a grammar.
struct Following(Matcher);

impl Constraint for Following {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Failure> {
        mask(&mut self.0, logits)
    }

    fn accept(&mut self, id: u32) -> Result<(), Failure> {
        self.0.consume_token(id).map_err(failed)
    }

    fn is_complete(&mut self) -> bool {
        self.0.is_stopped()
    }
}

/// A text that is free until an opening.
struct Waiting {
    opening: &'static str,
    opening_id: Option<u32>,
    /// Knows the bytes of ids.
    environment: TokEnv,
    /// The end of what has been written.
    written: Vec<u8>,
    /// Whether the grammar holds; unknown while it may still come to.
    is_open: Option<bool>,
    matcher: Matcher,
}

impl Constraint for Waiting {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Failure> {
        match self.is_open {
            Some(true) => mask(&mut self.matcher, logits),
            _ => Ok(()),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), Failure> {
        match self.is_open {
            Some(true) => return self.matcher.consume_token(id).map_err(failed),
            Some(false) => return Ok(()),
            None => {}
        }
        if self.opening.is_empty() {
            self.is_open = Some(self.matcher.try_consume_tokens(&[id]).map_err(failed)? == 1);
            return Ok(());
        }
        self.written.extend(self.environment.tok_trie().token(id));
        if Some(id) == self.opening_id || self.written.ends_with(self.opening.as_bytes()) {
            self.is_open = Some(true);
        }
        let old = self.written.len().saturating_sub(self.opening.len());
        self.written.drain(..old);
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.is_open == Some(true) && self.matcher.is_stopped()
    }
}

/// Leaves the logits of the ids that may follow.
fn mask(matcher: &mut Matcher, logits: &mut [f32]) -> Result<(), Failure> {
    let mask = matcher.compute_mask_or_eos().map_err(failed)?;
    if mask.is_zero() {
        return Err(Failure::wrong("the grammar lets no token of this model's follow"));
    }
    for (id, logit) in (0..).zip(logits.iter_mut()) {
        if !mask.is_allowed(id) {
            *logit = f32::NEG_INFINITY;
        }
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::wrong(format!("the grammar cannot be followed: {error}"))
}
