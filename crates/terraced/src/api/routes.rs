//! The routes of the API: the handler of each path.

use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use terrace_api::old_keys;
use terrace_api::provision::Resize;
use terrace_api::types::{Done, Setting};
use terrace_proto::{Command, Gpa};

use super::asker::{Answer, Asker, Body};
use super::failure::Failure;
use super::snapshot::{About, Snapshot};
use super::{metrics, resize, size_plan};
use crate::served::Served;

/// The router with all routes.
pub fn router(asker: Asker) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/vms", get(vms))
        .route("/v1/vms/{name}", get(vm))
        .route("/v1/vms/{name}/map", get(map))
        .route("/v1/vms/{name}/pages/{gpa}", get(page))
        .route("/v1/vms/{name}/pause", post(pause_vm))
        .route("/v1/vms/{name}/resume", post(resume_vm))
        .route("/v1/vms/{name}/round", post(round))
        .route("/v1/vms/{name}/plan", post(plan))
        .route("/v1/vms/{name}/set", post(set))
        .route("/v1/vms/{name}/resize", post(resize_vm))
        .route("/v1/plan", get(sizes))
        .route("/v1/pause", post(pause))
        .route("/v1/resume", post(resume))
        .route("/v1/doctor", get(doctor))
        .route("/v1/events", get(events))
        .route("/metrics", get(figures))
        .fallback(|| async { Failure::NotFound("no such path; see docs/api.md".into()) })
        .with_state(asker)
}

/// The answer to a command: its result as JSON.
fn said<T: Serialize>(done: &T) -> Answer {
    Body::of(done)
}

async fn status(State(asker): State<Asker>) -> Answer {
    asker.view(About::Host, |copy| Ok(copy.status())).await
}

async fn vms(State(asker): State<Asker>) -> Answer {
    asker.view(About::Vms, |copy| Ok(copy.list())).await
}

async fn vm(State(asker): State<Asker>, Path(name): Path<String>) -> Answer {
    let about = About::Vm(name.clone());
    let detail = move |copy: Snapshot| with_old_keys(&copy.detail(&name)?);
    asker.view(about, detail).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapQuery {
    cells: u64,
}

async fn map(
    State(asker): State<Asker>,
    Path(name): Path<String>,
    Query(query): Query<MapQuery>,
) -> Answer {
    const MAX: u64 = 65_536;
    if !(1..=MAX).contains(&query.cells) {
        return Err(Failure::Invalid(format!(
            "cells={}: from 1 to {MAX}",
            query.cells
        )));
    }
    asker.map(name, query.cells).await
}

async fn page(State(asker): State<Asker>, Path((name, gpa)): Path<(String, String)>) -> Answer {
    let digits = gpa.strip_prefix("0x").unwrap_or(&gpa);
    let gpa = u64::from_str_radix(digits, 16)
        .map_err(|_| Failure::Invalid(format!("{gpa}: not a hexadecimal address")))?;
    said(&asker.ask(move |d| d.page(&name, Gpa(gpa))).await?)
}

async fn pause(State(asker): State<Asker>) -> Answer {
    order(asker, None, |_| Command::Pause(None), "paused all VMs").await
}

async fn resume(State(asker): State<Asker>) -> Answer {
    order(asker, None, |_| Command::Resume(None), "resumed all VMs").await
}

async fn pause_vm(State(asker): State<Asker>, Path(name): Path<String>) -> Answer {
    said(&asker.ask(move |d| d.halt(&name, true)).await?)
}

async fn resume_vm(State(asker): State<Asker>, Path(name): Path<String>) -> Answer {
    said(&asker.ask(move |d| d.halt(&name, false)).await?)
}

async fn round(State(asker): State<Asker>, Path(name): Path<String>) -> Answer {
    let make = |vm: Option<_>| Command::RoundNow(vm.unwrap_or_default());
    order(asker, Some(name), make, "a round starts").await
}

async fn plan(State(asker): State<Asker>, Path(name): Path<String>) -> Answer {
    said(&asker.ask(move |d| d.plan(&name)).await?)
}

async fn sizes(State(asker): State<Asker>) -> Answer {
    said(&asker.ask(|d| Ok(size_plan::size_plan(d))).await?)
}

/// Hands a command about one VM, or all, to the engine.
async fn order(
    asker: Asker,
    name: Option<String>,
    make: impl FnOnce(Option<terrace_proto::VmId>) -> Command + Send + 'static,
    message: &'static str,
) -> Answer {
    let ordered = move |d: &mut dyn Served| {
        let vm = name.as_deref().map(|n| d.managed_id(n)).transpose()?;
        d.command(make(vm))?;
        Ok(Done {
            done: name.map_or_else(|| message.into(), |n| format!("{n}: {message}")),
        })
    };
    said(&asker.ask(ordered).await?)
}

async fn set(
    State(asker): State<Asker>,
    Path(name): Path<String>,
    Json(setting): Json<Setting>,
) -> Answer {
    said(&asker.ask(move |d| d.set(&name, &setting)).await?)
}

async fn resize_vm(
    State(asker): State<Asker>,
    Path(name): Path<String>,
    Json(sizes): Json<Resize>,
) -> Answer {
    said(&with_old_keys(&resize::resize(&asker, name, sizes).await?)?)
}

/// An answer with renamed keys under their old names too.
fn with_old_keys<T: Serialize>(answer: &T) -> Result<Value, Failure> {
    old_keys::with_old(answer)
        .map_err(|error| Failure::NotNow(format!("the answer could not be written: {error}")))
}

async fn figures(State(asker): State<Asker>) -> Result<impl IntoResponse, Failure> {
    let write = |copied: Snapshot| {
        let text = metrics::text(&copied);
        text.map_err(|error| Failure::NotNow(format!("the figures could not be written: {error}")))
    };
    let text = asker.made(About::Vms, write).await?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

async fn doctor(State(asker): State<Asker>) -> Answer {
    let inspect = |mut copy: Snapshot| {
        copy.inspect_host();
        Ok(copy.doctor())
    };
    asker.view(About::Doctor, inspect).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
}

async fn events(State(asker): State<Asker>, Query(query): Query<EventsQuery>) -> Answer {
    asker.events(query.after).await
}
