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
        let grammar = match grammar.clone() {
            Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(with_few_blanks(schema)),
            Grammar::Regex(expression) => TopLevelGrammar::from_regex(&expression),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text),
        };
        let matcher = Matcher::new(factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(Failure::misuse(format!("the grammar is not understood: {error}"))),
            None => Ok(Box::new(Following(matcher))),
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
fn with_few_blanks(schema: Value) -> Value {
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
        let mask = self.0.compute_mask_or_eos().map_err(failed)?;
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

    fn accept(&mut self, id: u32) -> Result<(), Failure> {
        self.0.consume_token(id).map_err(failed)
    }

    fn is_complete(&mut self) -> bool {
        self.0.is_stopped()
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::wrong(format!("the grammar cannot be followed: {error}"))
}
