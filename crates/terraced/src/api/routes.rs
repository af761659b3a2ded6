//! Which path answers what.

use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use terrace_api::elastic::{Ordered, Resize};
use terrace_api::types::{
    Doctor, Done, EventLine, HeatMap, PageExplanation, Planning, Setting, Status, Vm, VmDetail,
};
use terrace_proto::{Command, Gpa};

use super::{Asker, Failure, Served, elastic, metrics};

type Answer<T> = Result<Json<T>, Failure>;

/// All routes.
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
        .route("/v1/vms/{name}/resize", post(resize))
        .route("/v1/pause", post(pause))
        .route("/v1/resume", post(resume))
        .route("/v1/doctor", get(doctor))
        .route("/v1/events", get(events))
        .route("/metrics", get(figures))
        .fallback(|| async { Failure::NotFound("no such path; see docs/api.md".into()) })
        .with_state(asker)
}

async fn status(State(asker): State<Asker>) -> Answer<Status> {
    asker.ask(|d| Ok(d.status())).await.map(Json)
}

async fn vms(State(asker): State<Asker>) -> Answer<Vec<Vm>> {
    asker.ask(|d| Ok(d.list())).await.map(Json)
}

async fn vm(State(asker): State<Asker>, Path(name): Path<String>) -> Answer<VmDetail> {
    asker.ask(move |d| d.detail(&name)).await.map(Json)
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
) -> Answer<HeatMap> {
    const MOST: u64 = 65_536;
    if !(1..=MOST).contains(&query.cells) {
        return Err(Failure::Invalid(format!(
            "cells={}: from 1 to {MOST}",
            query.cells
        )));
    }
    asker
        .ask(move |d| d.map(&name, query.cells))
        .await
        .map(Json)
}

async fn page(
    State(asker): State<Asker>,
    Path((name, gpa)): Path<(String, String)>,
) -> Answer<PageExplanation> {
    let digits = gpa.strip_prefix("0x").unwrap_or(&gpa);
    let gpa = u64::from_str_radix(digits, 16)
        .map_err(|_| Failure::Invalid(format!("{gpa}: not a hexadecimal address")))?;
    asker
        .ask(move |d| d.explain(&name, Gpa(gpa)))
        .await
        .map(Json)
}

async fn pause(State(asker): State<Asker>) -> Answer<Done> {
    order(asker, None, |_| Command::Pause(None), "paused all VMs").await
}

async fn resume(State(asker): State<Asker>) -> Answer<Done> {
    order(asker, None, |_| Command::Resume(None), "resumed all VMs").await
}

async fn pause_vm(State(asker): State<Asker>, Path(name): Path<String>) -> Answer<Done> {
    asker.ask(move |d| d.halt(&name, true)).await.map(Json)
}

async fn resume_vm(State(asker): State<Asker>, Path(name): Path<String>) -> Answer<Done> {
    asker.ask(move |d| d.halt(&name, false)).await.map(Json)
}

async fn round(State(asker): State<Asker>, Path(name): Path<String>) -> Answer<Done> {
    let make = |vm: Option<_>| Command::RoundNow(vm.unwrap_or_default());
    order(asker, Some(name), make, "a round starts").await
}

async fn plan(State(asker): State<Asker>, Path(name): Path<String>) -> Answer<Planning> {
    asker.ask(move |d| d.plan(&name)).await.map(Json)
}

/// Hands a command about one VM, or all, to the engine.
async fn order(
    asker: Asker,
    name: Option<String>,
    make: impl FnOnce(Option<terrace_proto::VmId>) -> Command + Send + 'static,
    said: &'static str,
) -> Answer<Done> {
    let ordered = move |d: &mut dyn Served| {
        let vm = name.as_deref().map(|n| d.managed_id(n)).transpose()?;
        d.wish(make(vm))?;
        Ok(Done {
            done: name.map_or_else(|| said.into(), |n| format!("{n}: {said}")),
        })
    };
    asker.ask(ordered).await.map(Json)
}

async fn set(
    State(asker): State<Asker>,
    Path(name): Path<String>,
    Json(setting): Json<Setting>,
) -> Answer<Done> {
    asker.ask(move |d| d.set(&name, &setting)).await.map(Json)
}

async fn resize(
    State(asker): State<Asker>,
    Path(name): Path<String>,
    Json(sizes): Json<Resize>,
) -> Answer<Ordered> {
    elastic::resize(&asker, name, sizes).await.map(Json)
}

async fn figures(State(asker): State<Asker>) -> Result<impl IntoResponse, Failure> {
    let read = |d: &mut dyn Served| {
        let text = metrics::text(d);
        text.map_err(|error| Failure::NotNow(format!("the figures could not be written: {error}")))
    };
    let text = asker.ask(read).await?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

async fn doctor(State(asker): State<Asker>) -> Answer<Doctor> {
    asker.ask(|d| Ok(d.doctor())).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
}

async fn events(
    State(asker): State<Asker>,
    Query(query): Query<EventsQuery>,
) -> Answer<Vec<EventLine>> {
    asker
        .ask(move |d| Ok(d.events_after(query.after)))
        .await
        .map(Json)
}
