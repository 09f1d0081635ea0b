//! Requests to the agent from outside: signals, the configuration file and the stop file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use heapbpf_base::shown::Shown;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info};

use super::super::views::Prepared;
use super::config::Config;
use super::notify::ServiceManager;

/// Period of checking whether the stop file exists.
const STOP_FILE_PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Orders {
    pub(super) stop: bool,
    /// Whether the stop file exists.
    pub(super) is_halted: bool,
    pub(super) config: Arc<Config>,
    /// Prepared views of the configuration.
    pub(super) views: Arc<Prepared>,
}

/// Monitors requests on a task of the present runtime: it notifies the watchdog only as long as that runtime makes progress.
pub(super) fn monitor(
    path: PathBuf,
    config: Arc<Config>,
    views: Arc<Prepared>,
    manager: Arc<ServiceManager>,
) -> Result<watch::Receiver<Orders>> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let (mut interrupt, mut terminate, mut hangup) =
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    let is_halted = config.stop_file.exists();
    let (orders, receiver) = watch::channel(Orders { stop: false, is_halted, config, views });
    tokio::spawn(async move {
        let mut polls = interval(STOP_FILE_PERIOD);
        let mut watchdog = interval(manager.watchdog_period().unwrap_or(Duration::from_secs(3600)));
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = interrupt.recv() => orders.send_modify(|orders| orders.stop = true),
                _ = terminate.recv() => orders.send_modify(|orders| orders.stop = true),
                _ = hangup.recv() => reload(&path, &orders, &manager),
                _ = watchdog.tick() => manager.notify("WATCHDOG=1"),
                _ = polls.tick() => {
                    orders.send_if_modified(|orders| {
                        let is_halted = orders.config.stop_file.exists();
                        std::mem::replace(&mut orders.is_halted, is_halted) != is_halted
                    });
                }
                () = orders.closed() => break,
            }
        }
    });
    Ok(receiver)
}

fn reload(path: &Path, orders: &watch::Sender<Orders>, manager: &ServiceManager) {
    match read(path) {
        Ok((config, views)) => {
            info!("read `{}` again", Shown::of(path));
            orders.send_modify(|orders| (orders.config, orders.views) = (config, views));
        }
        Err(error) => {
            error!("the configuration is unchanged: {error:#}");
            manager.status(&format!("the configuration is unchanged: {error:#}"));
        }
    }
}

/// Reads the configuration, and the files that it names. Fails if any of them cannot be used.
pub(super) fn read(path: &Path) -> Result<(Arc<Config>, Arc<Prepared>)> {
    let config = Config::read(path)?;
    let views = config.views()?.prepare()?;
    Ok((Arc::new(config), Arc::new(views)))
}
