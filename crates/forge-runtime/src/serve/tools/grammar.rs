//! Grammars that constrain the output: JSON schemas, regular expressions and Lark grammars.
//!
//! llguidance tracks which bytes may come next and returns the allowed tokens. It is initialized on first
//! use, because that takes a while.

use crate::serve::batch::watchdog::{Watch, Watchdog};
use crate::serve::tools::grammar_limits::set_parser_limits;
use crate::serve::tools::token_bytes::TokenBytes;
use crate::session::generation::Constraint;
use forge_device::error::Error;
use forge_device::model::ModelInfo;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{CancellationHandle, Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time limit of one grammar step: a mask, or a token.
const STEP: Duration = Duration::from_millis(500);
/// Time limit of all steps of a sequence: a base, and an allowance per token. Other clients wait meanwhile.
const STEPS: Duration = Duration::from_secs(3);
const STEPS_FOR_TOKEN: Duration = Duration::from_millis(20);

/// A grammar for the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Grammar {
    /// JSON that is valid under a schema.
    Schema(Value),
    /// Text that matches a regular expression as a whole.
    Regex(String),
    /// A grammar in Lark notation.
    Lark(String),
    /// Free text; after the opening, a grammar. With an empty opening the grammar applies to the whole text
    /// if the first token fits it.
    After {
        /// The opening as text.
        opening: &'static str,
        /// The opening as a token id.
        opening_id: Option<u32>,
        /// In Lark notation.
        grammar: String,
    },
}

/// The grammar compiler of a server.
pub(crate) struct Grammars {
    token_bytes: Arc<TokenBytes>,
    info: &'static ModelInfo,
    factory: OnceLock<Result<(ParserFactory, Watchdog), String>>,
}

/// A compiled grammar, for any number of sequences.
pub(crate) struct CompiledGrammar {
    opening: Option<Opening>,
    matcher: Matcher,
    watch: Watch,
}

/// The opening of a deferred grammar, with the token bytes.
#[derive(Clone)]
struct Opening {
    text: &'static str,
    id: Option<u32>,
    environment: TokEnv,
}

impl Grammars {
    /// A compiler for the tokens of this model.
    pub(crate) fn new(token_bytes: Arc<TokenBytes>, info: &'static ModelInfo) -> Grammars {
        Grammars { token_bytes, info, factory: OnceLock::new() }
    }

    /// Loads the tokenizer on first use.
    pub(crate) fn prepare(&self) {
        self.factory.get_or_init(|| {
            let watchdog = Watchdog::start().map_err(|error| error.to_string())?;
            Ok((self.factory()?, watchdog))
        });
    }

    /// Compiles a grammar; [`Error::Usage`] if it is unsupported or too complex.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, Error> {
        self.prepare();
        let (factory, watchdog) = match self.factory.get() {
            Some(Ok(factory)) => (&factory.0, &factory.1),
            Some(Err(error)) => {
                let message = format!("grammars are not supported with this model's tokenizer: {error}");
                return Err(Error::usage(message));
            }
            None => return Err(Error::runtime("the tokenizer is not loaded")),
        };
        let top = match grammar.clone() {
            Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(compact(schema)),
            Grammar::Regex(expression) => TopLevelGrammar::from_regex(&expression),
            Grammar::Lark(grammar) | Grammar::After { grammar, .. } => TopLevelGrammar::from_lark(grammar),
        };
        let mut matcher = Matcher::new(factory.create_parser(top)).into_cancellable();
        if let Some(error) = matcher.get_error() {
            return Err(Error::usage(described(&error)));
        }
        let opening = match *grammar {
            Grammar::After { opening, opening_id, .. } => {
                Some(Opening { text: opening, id: opening_id, environment: factory.tok_env().clone() })
            }
            _ => None,
        };
        let watch = watchdog.watch();
        // Some grammars fail only when the first mask is computed.
        let handle = matcher.cancellation_handle().unwrap_or_default();
        let begins = watch.step(&handle, STEP, || matcher.compute_mask_or_eos());
        match begins {
            Ok(mask) if mask.is_zero() => Err(Error::usage("unsupported grammar: it matches no text")),
            Ok(_) => Ok(CompiledGrammar { opening, matcher, watch }),
            Err(error) => Err(Error::usage(described(&error.to_string()))),
        }
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let bytes = self.token_bytes.all()?;
        let end = self.info.eos.first().copied();
        let info = TokRxInfo::new(self.info.vocabulary, end.unwrap_or(llguidance::toktrie::INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, bytes);
        if !self.info.eos.is_empty() {
            trie = trie.with_eos_tokens(self.info.eos);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        set_parser_limits(factory.limits_mut());
        Ok(factory)
    }
}

/// A schema for JSON without whitespace.
pub(crate) fn compact(schema: Value) -> Value {
    with_option(schema, "whitespace_flexible", json!(false))
}

/// A schema for JSON with limited whitespace between tokens: a space, or a line break with indentation. With
/// unlimited whitespace a small model may generate nothing else.
pub(crate) fn with_few_blanks(schema: Value) -> Value {
    with_option(schema, "whitespace_pattern", json!(r" |\n {0,40}|\n\t{0,10}"))
}

/// Sets an option of llguidance in a schema, unless it is set.
fn with_option(mut schema: Value, name: &str, value: Value) -> Value {
    const OPTIONS: &str = "x-guidance";
    if let Value::Object(fields) = &mut schema
        && let Value::Object(options) = fields.entry(OPTIONS).or_insert_with(|| json!({}))
    {
        options.entry(name).or_insert(value);
    }
    schema
}

/// The error message for a client, without llguidance's internals.
fn described(error: &str) -> String {
    // Messages of llguidance when a limit is reached.
    const TOO_COMPLEX: [&str; 9] = [
        "operation cancelled",
        "fuel",
        "too big",
        "too large",
        "too many expressions",
        "Too many items",
        "Current row has",
        "lexer precomputation",
        "deeply nested",
    ];
    /// Maximum characters of a message.
    const MOST: usize = 300;
    if error.contains("NoExtension") {
        return "unsupported grammar: it matches no text".to_owned();
    }
    if TOO_COMPLEX.iter().any(|sign| error.contains(sign)) {
        return "the grammar is too complex; simplify it".to_owned();
    }
    if error.contains("panic") || error.contains("<state>") {
        return "unsupported grammar: it uses an unsupported feature".to_owned();
    }
    let error = error.replace("<non-verbose/>", "");
    let mut short: String = error.trim().chars().take(MOST).collect();
    if short.len() < error.trim().len() {
        short.push_str(" ...");
    }
    format!("unsupported grammar: {short}")
}

impl CompiledGrammar {
    /// A constraint for one sequence.
    pub(crate) fn constraint(&self) -> Box<dyn Constraint> {
        let matcher = self.matcher.clone().into_cancellable();
        let handle = matcher.cancellation_handle().unwrap_or_default();
        let following = GrammarConstraint {
            matcher,
            handle,
            watch: self.watch.clone(),
            spent: Duration::ZERO,
            tokens: 0,
        };
        match &self.opening {
            Some(opening) => Box::new(DeferredGrammar {
                opening: opening.clone(),
                recent: Vec::new(),
                is_open: None,
                following,
            }),
            None => Box::new(following),
        }
    }
}

/// The grammar state of one sequence.
struct GrammarConstraint {
    matcher: Matcher,
    /// Cancels a step of the matcher.
    handle: CancellationHandle,
    watch: Watch,
    /// Time spent in steps so far.
    spent: Duration,
    tokens: u32,
}

impl GrammarConstraint {
    /// Runs a step within the time limits.
    fn step<T, E: std::fmt::Display>(
        &mut self,
        step: impl FnOnce(&mut Matcher) -> Result<T, E>,
    ) -> Result<T, Error> {
        let too_complex = || Error::usage("the grammar became too complex during generation; simplify it");
        if self.spent > STEPS + STEPS_FOR_TOKEN * self.tokens {
            return Err(too_complex());
        }
        let start = Instant::now();
        let done = self.watch.step(&self.handle, STEP, || step(&mut self.matcher));
        self.spent += start.elapsed();
        done.map_err(|_| too_complex())
    }
}

impl Constraint for GrammarConstraint {
    /// Masks the logits of tokens that the grammar does not allow.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let mask: SimpleVob = self.step(Matcher::compute_mask_or_eos)?;
        if mask.is_zero() {
            return Err(Error::runtime("the grammar allows none of this model's tokens"));
        }
        for (id, logit) in (0..).zip(logits.iter_mut()) {
            if !mask.is_allowed(id) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), Error> {
        self.tokens += 1;
        self.step(|matcher| matcher.consume_token(id))
    }

    fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped()
    }
}

/// A constraint that applies after an opening.
struct DeferredGrammar {
    opening: Opening,
    /// The last bytes generated.
    recent: Vec<u8>,
    /// Whether the grammar applies; `None` while the opening may still come.
    is_open: Option<bool>,
    following: GrammarConstraint,
}

impl Constraint for DeferredGrammar {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        match self.is_open {
            Some(true) => self.following.mask(logits),
            _ => Ok(()),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), Error> {
        match self.is_open {
            Some(true) => return self.following.accept(id),
            Some(false) => return Ok(()),
            None => {}
        }
        let Opening { text, id: opening_id, environment } = &self.opening;
        if text.is_empty() {
            let taken = self.following.step(|matcher| matcher.try_consume_tokens(&[id]))?;
            self.is_open = Some(taken == 1);
            return Ok(());
        }
        self.recent.extend(environment.tok_trie().token(id));
        if Some(id) == *opening_id || self.recent.ends_with(text.as_bytes()) {
            self.is_open = Some(true);
        }
        let old = self.recent.len().saturating_sub(text.len());
        self.recent.drain(..old);
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.is_open == Some(true) && self.following.is_complete()
    }
}
