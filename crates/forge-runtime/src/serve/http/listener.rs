//! Connections: how many, how patient the server is with them, and how it ends.

use crate::error::Error;
use crate::serve::Stop;
use crate::serve::api::state::ServerState;
use crate::serve::http::auth::is_open_path;
use crate::serve::http::connections::Connections;
use crate::serve::http::error::ApiError;
use crate::serve::http::routes::router;
use crate::serve::http::write_timeout::WriteTimeout;
use axum::response::IntoResponse;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io::{Write, stderr};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take to say what it wants.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// The most bytes of a request's head.
const HEADER_BYTES: usize = 64 << 10;
/// Threads that read bodies into prompts.
const ASIDE: usize = 4;
/// Connections beyond those that are being answered or wait.
const SPARE: usize = 64;
/// Connections beyond these, which are for asking whether the server lives.
const RESERVE: usize = 16;

/// Takes an address, or says who may have it.
pub(crate) fn listen(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::usage(format!(
            "port {port} of {host} is taken by another program: --port {} would be the next, --port 0 any that is free",
            port.wrapping_add(1)
        )),
        std::io::ErrorKind::PermissionDenied => {
            Error::usage(format!("port {port} of {host} is not for everyone: one above 1023 is"))
        }
        _ => Error::usage(format!("cannot listen at {host} port {port}: {error}")),
    };
    let listener = TcpListener::bind((host, port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Answers connections until the first signal, and those that are there until their answers have ended or the second.
pub(crate) fn run(listener: TcpListener, service: Arc<ServerState>, stop: &Stop) -> Result<(), Error> {
    let wrong = |error: std::io::Error| Error::runtime(format!("the server: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(ASIDE)
        .build()
        .map_err(wrong)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(wrong)?;
        let mut signals = Signals::new().map_err(wrong)?;
        let most = service.queue.most() + SPARE;
        let connections = Arc::new(Connections::default());
        let router = TowerToHyperService::new(router(service.clone()));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(HEADER_BYTES);
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = signals.next() => break,
                () = stop.0.notified() => break,
            };
            let Ok((stream, _)) = accepted else {
                // Out of files, most likely: connections that end give some back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Events are small, and each is wanted at once.
            let _ = stream.set_nodelay(true);
            // Where all are answered, and those in reserve too, there is nothing to be done for another.
            let Some(open) = connections.open(most, RESERVE) else { continue };
            let (all, router, state) = (connections.clone(), router.clone(), open.state());
            let respond = service_fn(move |request| {
                let is_full = all.count() > most && !is_open_path(&request);
                let (state, router) = (state.clone(), router.clone());
                async move {
                    let request = state.receive(request);
                    let response = match is_full {
                        true => ApiError::overloaded().into_response(),
                        false => router.call(request).await?,
                    };
                    Ok::<_, Infallible>(state.answer(response))
                }
            });
            let connection =
                graceful.watch(http.serve_connection(TokioIo::new(WriteTimeout::new(stream)), respond));
            tokio::spawn(async move {
                // A connection that breaks is the client's business.
                tokio::select! {
                    _ = connection => {}
                    () = open.closed() => {}
                }
            });
        }
        drop(listener);
        // Whoever read standard error may have gone, and answers are not to go with them.
        let _ =
            writeln!(stderr(), "stopping when the answers under way have ended; once more to stop at once");
        tokio::select! {
            () = graceful.shutdown() => Ok(()),
            () = signals.next() => std::process::exit(130),
            () = stop.0.notified() => Ok(()),
        }
    })
}

/// What asks a program to end.
#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// What asks a program to end.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
