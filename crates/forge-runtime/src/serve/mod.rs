//! The server: one model, many clients, as OpenAI's clients expect it.
//!
//! Two threads. The one that owns the engine runs the `scheduler`: it alone knows the model's type. The other one
//! serves connections: `listener` takes them, `access` asks who they are, `endpoints` reads what they want into
//! prompts and completions, `queue` hands these to the scheduler, and `answer` carries what comes back to the client.
//! Prompts and answers are in no log.

pub(crate) mod api;
pub(crate) mod batch;
pub(crate) mod http;
pub(crate) mod tools;

use crate::device::Device;
use crate::engine::Engine;
use crate::error::Error;
use crate::model::ModelInfo;
use crate::sampling::sampler::SamplingParams;
use crate::serve::api::state::ServerState;
use crate::serve::batch::queue::Queue;
use crate::serve::batch::scheduler::Scheduler;
use crate::serve::http::auth::Auth;
use crate::serve::http::metrics::Metrics;
use crate::serve::tools::grammar::Grammars;
use crate::serve::tools::grammar_threads::GrammarThreads;
use crate::serve::tools::token_bytes::TokenBytes;
use crate::text::chat_template::Template;
use crate::text::tokenizer::Tokenizer;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::Notify;

/// How a model is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen at.
    pub host: String,
    /// The port there; 0: any that is free.
    pub port: u16,
    /// Keys, any of which a request has to show; none: requests show none.
    pub api_keys: Vec<String>,
    /// Whether others may reach the server although it wants no key.
    pub insecure: bool,
    /// Texts that may wait for a slot.
    pub queue: u32,
    /// Origins whose pages may ask; `*`: all.
    pub origins: Vec<String>,
    /// Other names that the model answers to.
    pub aliases: Vec<String>,
}

/// A server that has its address, and no model yet.
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    stop: Stop,
}

/// Ends a server as Ctrl-C does, from within the program.
#[derive(Clone, Default)]
pub struct Stop(Arc<Notify>);

impl Stop {
    /// Lets answers that are under way come to their end; the second time it does not.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

impl Server {
    /// Takes the address, before anything that takes longer.
    pub fn listen(options: Options) -> Result<Server, Error> {
        if options.aliases.iter().any(|alias| alias.trim().is_empty()) {
            return Err(Error::usage("an alias is empty: --alias takes a name"));
        }
        let (listener, address) = crate::serve::http::listener::listen(&options.host, options.port)?;
        if !address.ip().is_loopback() && options.api_keys.is_empty() && !options.insecure {
            return Err(Error::usage(format!(
                "at {} others can reach the model: --api-key KEY (or MODEL_API_KEY) keeps them out, --no-api-key lets them in",
                address.ip()
            )));
        }
        Ok(Server { options, listener, address, stop: Stop::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether a model can be served in so many slots, which have a row each in a pass.
    pub fn check_slots(info: &ModelInfo, slots: u32) -> Result<(), Error> {
        match slots > info.chunk {
            true => Err(Error::usage(format!(
                "{slots} slots; a pass of this model has at most {} rows",
                info.chunk
            ))),
            false => Ok(()),
        }
    }

    /// What ends it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves the model of `engine`, which has `slots` slots, until it is told to stop. `tokenizer` is where `text` was
    /// read from; `sampling` is how ids are chosen unless a request says otherwise.
    pub fn run<D: Device>(
        self,
        engine: Engine<D>,
        slots: u32,
        text: Tokenizer,
        tokenizer: PathBuf,
        template: Option<Template>,
        sampling: SamplingParams,
    ) -> Result<(), Error> {
        let Server { options, listener, address, stop } = self;
        Server::check_slots(engine.info(), slots)?;
        let metrics = Arc::new(Metrics::default());
        let (queue, jobs) = Queue::new(slots, options.queue, metrics.clone());
        let token_bytes = Arc::new(TokenBytes::new(tokenizer, engine.info().vocabulary));
        let service = Arc::new(ServerState {
            info: engine.info(),
            context: engine.context(),
            slots,
            text,
            template,
            sampling,
            grammars: Grammars::new(token_bytes.clone(), engine.info()),
            token_bytes,
            grammar_threads: GrammarThreads::default(),
            queue,
            metrics: metrics.clone(),
            access: Auth::new(address.ip(), options.api_keys, options.origins),
            is_ready: AtomicBool::new(false),
            aliases: options.aliases,
            created: crate::serve::api::completion_body::now(),
        });
        let of_thread = service.clone();
        let thread = std::thread::Builder::new()
            .name("connections".to_owned())
            .spawn(move || crate::serve::http::listener::run(listener, of_thread, &stop))
            .map_err(|error| Error::runtime(format!("the server: {error}")))?;
        let mut scheduler = Scheduler::new(engine, slots, jobs, metrics);
        scheduler.warm_up()?;
        service.is_ready.store(true, Relaxed);
        // The scheduler ends when nobody is left who could send it anything.
        drop(service);
        scheduler.run();
        thread.join().unwrap_or_else(|_| Err(Error::runtime("the thread that serves connections has failed")))
    }
}
