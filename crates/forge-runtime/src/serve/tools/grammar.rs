//! Grammars: text that has to be JSON, to follow a schema, to match an expression.
//!
//! llguidance keeps, for one text, which bytes may come next, and gives the ids whose bytes they are. Making
//! that ready takes a moment and is done when the first grammar is asked for.

use crate::error::Error;
use crate::model::ModelInfo;
use crate::serve::batch::watchdog::{Watch, Watchdog};
use crate::serve::tools::grammar_limits::set_parser_limits;
use crate::serve::tools::token_bytes::TokenBytes;
use crate::session::generation::Constraint;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{CancellationHandle, Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long one step through a grammar may take: a mask, or a token.
const STEP: Duration = Duration::from_millis(500);
/// How long the steps of one text may take together, and how much longer for each token. Other clients wait meanwhile.
const STEPS: Duration = Duration::from_secs(3);
const STEPS_FOR_TOKEN: Duration = Duration::from_millis(20);

/// What a text has to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Grammar {
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

/// Compiles grammars.
pub(crate) struct Grammars {
    token_bytes: Arc<TokenBytes>,
    info: &'static ModelInfo,
    factory: OnceLock<Result<(ParserFactory, Watchdog), String>>,
}

/// A grammar that has been compiled, for any number of texts.
pub(crate) struct CompiledGrammar {
    opening: Option<Opening>,
    matcher: Matcher,
    watch: Watch,
}

/// What comes before a grammar holds, and what the bytes of tokens are.
#[derive(Clone)]
struct Opening {
    text: &'static str,
    id: Option<u32>,
    environment: TokEnv,
}

impl Grammars {
    /// For the tokens of the model.
    pub(crate) fn new(token_bytes: Arc<TokenBytes>, info: &'static ModelInfo) -> Grammars {
        Grammars { token_bytes, info, factory: OnceLock::new() }
    }

    /// Reads the tokenizer, unless that has been done.
    pub(crate) fn prepare(&self) {
        self.factory.get_or_init(|| {
            let watchdog = Watchdog::start().map_err(|error| error.to_string())?;
            Ok((self.factory()?, watchdog))
        });
    }

    /// Compiles a grammar; [`Error::Usage`] if it is not understood, or too complex.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, Error> {
        self.prepare();
        let (factory, watchdog) = match self.factory.get() {
            Some(Ok(factory)) => (&factory.0, &factory.1),
            Some(Err(error)) => {
                let message = format!("this model's tokenizer leaves no way to follow a grammar: {error}");
                return Err(Error::usage(message));
            }
            None => return Err(Error::runtime("the tokenizer has not been read")),
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
        // Some grammars turn out to have no beginning, or to be too complex, only when one is asked for.
        let handle = matcher.cancellation_handle().unwrap_or_default();
        let begins = watch.step(&handle, STEP, || matcher.compute_mask_or_eos());
        match begins {
            Ok(mask) if mask.is_zero() => {
                Err(Error::usage("the grammar is not understood: no text of it has a beginning"))
            }
            Ok(_) => Ok(CompiledGrammar { opening, matcher, watch }),
            Err(error) => Err(Error::usage(described(&error.to_string()))),
        }
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let bytes = self.token_bytes.all()?;
        let end = self.info.end.first().copied();
        let info = TokRxInfo::new(self.info.vocabulary, end.unwrap_or(llguidance::toktrie::INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, bytes);
        if !self.info.end.is_empty() {
            trie = trie.with_eos_tokens(self.info.end);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        set_parser_limits(factory.limits_mut());
        Ok(factory)
    }
}

/// A schema whose JSON has nothing between tokens.
pub(crate) fn compact(schema: Value) -> Value {
    with_option(schema, "whitespace_flexible", json!(false))
}

/// A schema whose JSON has a blank, or a line and its indentation, between tokens. Where as many may stand as one likes,
/// a small model may like nothing else until its text is cut.
pub(crate) fn with_few_blanks(schema: Value) -> Value {
    with_option(schema, "whitespace_pattern", json!(r" |\n {0,40}|\n\t{0,10}"))
}

/// A schema with an option of llguidance's, unless it has that.
fn with_option(mut schema: Value, name: &str, value: Value) -> Value {
    const OPTIONS: &str = "x-guidance";
    if let Value::Object(fields) = &mut schema
        && let Value::Object(options) = fields.entry(OPTIONS).or_insert_with(|| json!({}))
    {
        options.entry(name).or_insert(value);
    }
    schema
}

/// The message for a client about an error of the grammar library, without the library's internals.
fn described(error: &str) -> String {
    // What the library says when one of its limits is reached.
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
    /// Characters of a message.
    const MOST: usize = 300;
    if error.contains("NoExtension") {
        return "the grammar is not understood: no text of it has a beginning".to_owned();
    }
    if TOO_COMPLEX.iter().any(|sign| error.contains(sign)) {
        return "the grammar is too complex; simplify it".to_owned();
    }
    if error.contains("panic") || error.contains("<state>") {
        return "the grammar is not understood: it uses something that is not supported, or in a way that is not"
            .to_owned();
    }
    let error = error.replace("<non-verbose/>", "");
    let mut short: String = error.trim().chars().take(MOST).collect();
    if short.len() < error.trim().len() {
        short.push_str(" ...");
    }
    format!("the grammar is not understood: {short}")
}

impl CompiledGrammar {
    /// A constraint for one text.
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
                written: Vec::new(),
                is_open: None,
                following,
            }),
            None => Box::new(following),
        }
    }
}

/// A text on its way through a grammar.
struct GrammarConstraint {
    matcher: Matcher,
    /// Cancels a step of the matcher.
    handle: CancellationHandle,
    watch: Watch,
    /// What the steps so far have taken.
    spent: Duration,
    tokens: u32,
}

impl GrammarConstraint {
    /// Takes a step, within the limits on time.
    fn step<T, E: std::fmt::Display>(
        &mut self,
        step: impl FnOnce(&mut Matcher) -> Result<T, E>,
    ) -> Result<T, Error> {
        let too_complex =
            || Error::usage("the grammar became too complex while the text was written; simplify it");
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
    /// Leaves the logits of the tokens that may follow.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let mask: SimpleVob = self.step(Matcher::compute_mask_or_eos)?;
        if mask.is_zero() {
            return Err(Error::runtime("the grammar lets no token of this model's follow"));
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

/// A text that is free until an opening.
struct DeferredGrammar {
    opening: Opening,
    /// The end of what has been written.
    written: Vec<u8>,
    /// Whether the grammar holds; unknown while it may still come to.
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
        self.written.extend(environment.tok_trie().token(id));
        if Some(id) == *opening_id || self.written.ends_with(text.as_bytes()) {
            self.is_open = Some(true);
        }
        let old = self.written.len().saturating_sub(text.len());
        self.written.drain(..old);
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.is_open == Some(true) && self.following.is_complete()
    }
}
