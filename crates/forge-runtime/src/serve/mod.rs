//! The HTTP server: one model for many clients, with the OpenAI API.
//!
//! There are two threads. One owns the engine and runs the scheduler (`batch`). The other serves connections
//! (`http`): it authenticates requests, parses them into prompts and generation parameters (`api`, `tools`),
//! queues them for the scheduler and sends its events to the client. Prompts and outputs are not logged.

pub(crate) mod allocator;
pub(crate) mod api;
pub(crate) mod batch;
pub(crate) mod http;
pub(crate) mod stop;
pub(crate) mod tools;

pub use crate::serve::stop::Stop;

use crate::engine::Engine;
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
use forge_device::device::Device;
use forge_device::error::Error;
use forge_device::model::ModelInfo;
use forge_device::sampling::sampler::SamplingParams;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Server options.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on.
    pub host: String,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// Accepted API keys; if empty, requests need no key.
    pub api_keys: Vec<String>,
    /// Whether requests without a key are allowed on a public address.
    pub allow_no_api_key: bool,
    /// Maximum number of sequences waiting for a slot.
    pub queue: u32,
    /// Browser origins that may send requests; `*` allows all.
    pub origins: Vec<String>,
    /// Additional model names to accept.
    pub aliases: Vec<String>,
}

/// A server that is bound to its address, before its model is loaded.
pub struct Server {
    options: ServerOptions,
    listener: TcpListener,
    address: SocketAddr,
    stop: Stop,
}

impl Server {
    /// Binds the address, before slower steps such as loading.
    pub fn listen(options: ServerOptions) -> Result<Server, Error> {
        if options.aliases.iter().any(|alias| alias.trim().is_empty()) {
            return Err(Error::usage("empty name: check --alias"));
        }
        let (listener, address) = crate::serve::http::listener::listen(&options.host, options.port)?;
        if !address.ip().is_loopback() && options.api_keys.is_empty() && !options.allow_no_api_key {
            return Err(Error::usage(format!(
                "cannot listen on {} without an API key: pass --api-key (or set MODEL_API_KEY) or --no-api-key",
                address.ip()
            )));
        }
        Ok(Server { options, listener, address, stop: Stop::default() })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Checks that the number of slots fits in a pass, which has a row for each.
    pub fn check_slots(info: &ModelInfo, slots: u32) -> Result<(), Error> {
        match slots > info.prefill_chunk {
            true => Err(Error::usage(format!(
                "--slots {slots} is too large: a pass of this model has at most {} rows",
                info.prefill_chunk
            ))),
            false => Ok(()),
        }
    }

    /// A handle that stops the server.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves the model of `engine` until stopped. `slots` is the engine's number of slots, `tokenizer` the
    /// path of `text`, and `sampling` the default sampling parameters.
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
        crate::serve::allocator::limit_retained_memory();
        let metrics = Arc::new(Metrics::default());
        let (queue, jobs) = Queue::new(slots, options.queue, metrics.clone());
        let token_bytes = Arc::new(TokenBytes::new(tokenizer, engine.info().vocabulary));
        let service = Arc::new(ServerState {
            info: engine.info(),
            context: engine.context(),
            slots,
            tokenizer: text,
            template,
            sampling,
            grammars: Grammars::new(token_bytes.clone(), engine.info()),
            token_bytes,
            grammar_threads: GrammarThreads::default(),
            queue,
            metrics: metrics.clone(),
            auth: Auth::new(address.ip(), options.api_keys, options.origins),
            is_ready: AtomicBool::new(false),
            aliases: options.aliases,
            created: crate::serve::api::completion_body::now(),
        });
        let thread_service = service.clone();
        let thread = std::thread::Builder::new()
            .name("connections".to_owned())
            .spawn(move || crate::serve::http::listener::run(listener, thread_service, &stop))
            .map_err(|error| Error::runtime(format!("the server: {error}")))?;
        let mut scheduler = Scheduler::new(engine, slots, jobs, metrics);
        scheduler.warm_up()?;
        service.is_ready.store(true, Relaxed);
        // The scheduler ends when no sender of its queue is left.
        drop(service);
        scheduler.run();
        thread.join().unwrap_or_else(|_| Err(Error::runtime("the connection thread failed")))
    }
}
