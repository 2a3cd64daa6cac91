//! A server of the tiny model, and a client.

use crate::model::Tiny;
use crate::runtime::cpu::CpuDevice;
use crate::runtime::device::{Binding, Buffer, Device, Kernel, Pass, RunAhead, Schedule};
use crate::runtime::engine::Engine;
use crate::runtime::error::Error;
use crate::runtime::model::LoadModel;
use crate::runtime::offload::CacheStats;
use crate::runtime::sampling::sampler::SamplingParams;
use crate::runtime::serve::{Server, ServerOptions, Stop};
use crate::runtime::text::chat_template::Template;
use crate::runtime::text::tokenizer::Tokenizer;
use crate::runtime::weights::WeightFile;
use crate::support::http::{OpenResponse, Response, send};
use crate::support::reference::{Reference, write_letters, write_tokenizer};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A device that is slow, fails while `disk_fails` is set, and reports expert streaming statistics.
pub(crate) struct Slow {
    inner: CpuDevice,
    pace: Duration,
    disk_fails: Arc<AtomicBool>,
    passes: u32,
    renewals: Option<Arc<AtomicUsize>>,
    run_ahead: Option<RunAhead>,
    /// The number of passes so far.
    passes_run: Arc<AtomicUsize>,
}

/// Expert cache statistics of each pass.
pub(crate) const OF_PASS: CacheStats = CacheStats {
    requests: 10,
    hits: 7,
    prefetch_hits: 1,
    miss_bytes: 800,
    read_bytes: 1000,
    stall_time: Duration::from_millis(500),
};
/// Disk bandwidth of the device, in bytes/s.
pub(crate) const DISK: f64 = 1600.0;

impl Device for Slow {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.inner.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.inner.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        std::thread::sleep(self.pace);
        self.passes += 1;
        self.passes_run.fetch_add(1, Ordering::Relaxed);
        if self.disk_fails.load(Ordering::Relaxed) {
            // In the middle of a pass, which leaves partly written state.
            self.inner.run(program, &mut |pass| encode(&mut First { pass, left: 5 }))?;
            return Err("experts cannot be read: the disk is broken".to_owned());
        }
        self.inner.run(program, encode)
    }

    fn expert_cache_stats(&self) -> Option<CacheStats> {
        let mut counts = CacheStats::default();
        (0..self.passes).for_each(|_| counts += OF_PASS);
        Some(counts)
    }

    fn run_ahead(&self) -> RunAhead {
        self.run_ahead.unwrap_or(RunAhead::NONE)
    }

    fn renew_residency(&mut self) -> bool {
        self.renewals.as_ref().map(|renewals| renewals.fetch_add(1, Ordering::Relaxed)).is_some()
    }

    fn measure_disk_bandwidth(&mut self) -> Result<Option<f64>, String> {
        Ok(Some(DISK))
    }
}

/// A pass that executes only its first dispatches.
struct First<'a> {
    pass: &'a mut dyn Pass,
    left: usize,
}

impl Pass for First<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if self.left > 0 {
            self.left -= 1;
            self.pass.dispatch(kernel, bindings, scalars, groups);
        }
    }

    fn barrier(&mut self) {
        self.pass.barrier();
    }

    fn gpu_cores(&self) -> u32 {
        self.pass.gpu_cores()
    }
}

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Stop,
    pub(crate) thread: Option<JoinHandle<Result<(), Error>>>,
    /// The number of passes that the device has run.
    pub(crate) passes: Arc<AtomicUsize>,
    _folder: TempDir,
}

/// Settings of the server in a test.
#[derive(Clone, Default)]
pub(crate) struct Setting {
    pub(crate) slots: u32,
    /// Context length of each slot.
    pub(crate) context: u32,
    pub(crate) queue: u32,
    /// Duration of a pass in milliseconds.
    pub(crate) pace: u64,
    /// The number of times that residency was renewed, if the device needs it.
    pub(crate) renewals: Option<Arc<AtomicUsize>>,
    /// How far the device runs ahead, if it does.
    pub(crate) run_ahead: Option<RunAhead>,
    /// Whether passes fail.
    pub(crate) disk_fails: Option<Arc<AtomicBool>>,
    pub(crate) keys: Vec<String>,
    pub(crate) origins: Vec<String>,
    /// Whether tokens are letters instead of words.
    pub(crate) letters: bool,
    /// A chat template with tools, instead of the default one.
    pub(crate) template: Option<&'static str>,
    pub(crate) without_template: bool,
}

pub(crate) const PLAIN: Setting = Setting {
    slots: 4,
    context: 64,
    queue: 64,
    pace: 0,
    renewals: None,
    run_ahead: None,
    disk_fails: None,
    keys: Vec::new(),
    origins: Vec::new(),
    letters: false,
    template: None,
    without_template: false,
};

pub(crate) const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\
    {% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
    {% if message.role == 'user' %} w10 {% else %} w11 {% endif %}{{ message.content }}{% endfor %} w12";

pub(crate) fn serve(setting: &Setting) -> Served {
    serve_model(Tiny::load, setting)
}

/// Serves another model with the same vocabulary size instead of the tiny one.
pub(crate) fn serve_model(load: LoadModel, setting: &Setting) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    let weights = WeightFile::open(&path).unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    if setting.letters {
        write_letters(&tokenizer)
    } else {
        write_tokenizer(&tokenizer)
    }
    let text = Tokenizer::read(&tokenizer).unwrap();
    let specials = json!({ "bos_token": "<s>" }).as_object().unwrap().clone();
    let template = Template::new(setting.template.unwrap_or(TEMPLATE), None, specials).unwrap();
    let template = (!setting.without_template).then_some(template);
    let Setting { slots, context, queue, pace, .. } = *setting;
    let server = Server::listen(ServerOptions {
        host: "127.0.0.1".to_owned(),
        port: 0,
        api_keys: setting.keys.clone(),
        allow_no_api_key: false,
        queue,
        origins: setting.origins.clone(),
        aliases: vec!["small".to_owned()],
    })
    .unwrap();
    let (address, stop) = (server.address(), server.stop());
    let disk_fails = setting.disk_fails.clone().unwrap_or_default();
    let (renewals, run_ahead) = (setting.renewals.clone(), setting.run_ahead);
    let passes = Arc::new(AtomicUsize::new(0));
    let passes_run = passes.clone();
    let thread = std::thread::spawn(move || {
        let model = load(&weights, context, slots).unwrap();
        let device = CpuDevice::new(&weights, model.layout(), Some(1)).unwrap().exact(true);
        let pace = Duration::from_millis(pace);
        let device = Slow { inner: device, pace, disk_fails, passes: 0, renewals, run_ahead, passes_run };
        let engine = Engine::new(model, device, context, slots);
        let sampling = SamplingParams { temperature: 0.9, ..SamplingParams::default() };
        server.run(engine, slots, text, tokenizer, template, sampling)
    });
    let served = Served { address, stop, thread: Some(thread), passes, _folder: folder };
    while served.get("/ready").status != 200 {
        std::thread::sleep(Duration::from_millis(2));
    }
    served
}

impl Served {
    pub(crate) fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], "").response()
    }

    pub(crate) fn ask(&self, path: &str, body: &Value) -> OpenResponse {
        send(self.address, "POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.ask(path, body).response()
    }

    /// The response to a request that must succeed.
    pub(crate) fn answer(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        response.json()
    }

    /// Reads a value of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("forge_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has the expected value.
    pub(crate) fn becomes(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != value {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{name} is {}, not {value}",
                self.metric(name)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the server and asserts a clean exit.
    pub(crate) fn end(mut self) {
        self.stop.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const PLAINLY: &str = "/v1/completions";

/// Token ids of the words of a prompt.
pub(crate) fn ids(seed: usize, count: usize) -> Vec<usize> {
    (0..count).map(|i| 3 + (seed * 17 + i * (seed % 5 + 1) * 7 + i * i) % 47).collect()
}

pub(crate) fn greedy(prompt: &[usize], count: usize) -> Value {
    json!({ "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true })
}

pub(crate) fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}
