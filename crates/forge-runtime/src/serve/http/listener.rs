//! The connection loop: limits, timeouts and shutdown.

use crate::serve::api::state::ServerState;
use crate::serve::http::auth::is_open_path;
use crate::serve::http::connections::Connections;
use crate::serve::http::error::ApiError;
use crate::serve::http::routes::router;
use crate::serve::http::write_timeout::WriteTimeout;
use crate::serve::stop::Stop;
use axum::response::IntoResponse;
use forge_device::error::Error;
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

/// Time limit for a request's head.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a request's head in bytes.
const HEADER_BYTES: usize = 64 << 10;
/// Threads for parsing and tokenizing request bodies.
const BLOCKING_THREADS: usize = 4;
/// Connections allowed beyond slots and queue.
const SPARE: usize = 64;
/// Further connections, for health checks only.
const RESERVE: usize = 16;

/// Binds an address.
pub(crate) fn listen(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::usage(format!(
            "port {port} of {host} is in use: try --port {}, or --port 0 for a free one",
            port.wrapping_add(1)
        )),
        std::io::ErrorKind::PermissionDenied => {
            Error::usage(format!("permission denied: port {port} is privileged; use a port above 1023"))
        }
        _ => Error::usage(format!("cannot listen on {host} port {port}: {error}")),
    };
    let listener = TcpListener::bind((host, port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Serves connections until the first signal, then finishes running requests until the second.
pub(crate) fn run(listener: TcpListener, service: Arc<ServerState>, stop: &Stop) -> Result<(), Error> {
    let server_error = |error: std::io::Error| Error::runtime(format!("the server: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(server_error)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(server_error)?;
        let mut signals = Signals::new().map_err(server_error)?;
        let most = service.queue.capacity() + SPARE;
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
                // Usually out of file descriptors: wait until connections close.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Disables Nagle's algorithm: stream events are small and latency matters.
            let _ = stream.set_nodelay(true);
            // Drops the connection if all others are active and the reserve is used up.
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
                    Ok::<_, Infallible>(state.track_response(response))
                }
            });
            let connection =
                graceful.watch(http.serve_connection(TokioIo::new(WriteTimeout::new(stream)), respond));
            tokio::spawn(async move {
                // Errors of a connection concern only its client.
                tokio::select! {
                    _ = connection => {}
                    () = open.closed() => {}
                }
            });
        }
        drop(listener);
        // Standard error may be closed; that must not end running requests.
        let _ = writeln!(stderr(), "finishing running requests; press Ctrl-C again to stop at once");
        tokio::select! {
            () = graceful.shutdown() => Ok(()),
            () = signals.next() => std::process::exit(130),
            () = stop.0.notified() => Ok(()),
        }
    })
}

/// Signals that stop the server.
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

/// Signals that stop the server.
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
