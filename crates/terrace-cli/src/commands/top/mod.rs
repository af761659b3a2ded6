//! `terrace top`: the VMs live.
//!
//! Responsible for: asking the daemon, keys, and the terminal. It leaves to others: the drawing of frames ([`frame`])
//! and frames outside of a terminal ([`picture`]). Questions run beside the keys, so a daemon that hangs or is gone
//! never holds up the terminal.

mod frame;
pub mod picture;
#[cfg(test)]
mod tests;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use terrace_api::client::{Client, ClientError, segment};
use terrace_api::types::{Done, HeatMap, Mode, Setting, Status, Vm, VmDetail};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::args::Top;
use crate::output::{self, files::put};
use frame::Screen;

/// The daemon's answers at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    status: Status,
    vms: Vec<Vm>,
    /// The details of the selected VM.
    detail: Option<VmDetail>,
    map: Option<HeatMap>,
}

pub async fn run(client: &Client, socket: &Path, args: Top) -> Result<()> {
    if let Some(name) = &args.vm {
        // The daemon's answer names those that there are.
        let path = format!("/v1/vms/{}", segment(name));
        client.get::<VmDetail>(&path).await?;
    }
    let mut screen = Screen::new(socket, args.vm.clone());
    if args.once {
        let area = Rect::new(0, 0, args.size.0, args.size.1);
        screen.take(Ok(ask(client, screen.selected.clone(), area).await?));
        return once(&screen, area, args.svg.as_deref());
    }
    ensure!(
        std::io::stdout().is_terminal(),
        "top needs a terminal; --once prints one frame anywhere"
    );
    // Restores the terminal at a panic, too.
    let mut terminal = ratatui::try_init().context("cannot set up the terminal")?;
    let watched = watch(client, &mut screen, &mut terminal, args.interval).await;
    ratatui::try_restore().context("cannot restore the terminal")?;
    watched
}

fn once(screen: &Screen, area: Rect, svg: Option<&Path>) -> Result<()> {
    let mut terminal = Terminal::new(TestBackend::new(area.width, area.height))?;
    terminal.draw(|f| frame::draw(screen, f))?;
    let buffer = terminal.backend().buffer();
    match svg {
        None => output::print(picture::text(buffer))?,
        Some(file) => {
            put(file, &picture::svg(buffer))?;
            output::tell(format_args!("wrote {}", file.display()));
        }
    }
    Ok(())
}

/// Asks for all that a frame shows.
async fn ask(
    client: &Client,
    selected: Option<String>,
    area: Rect,
) -> Result<Snapshot, ClientError> {
    let status = client.get("/v1/status").await?;
    let vms: Vec<Vm> = client.get("/v1/vms").await?;
    let selected = frame::select(&vms, selected.as_deref()).map(|i| vms[i].name.clone());
    let (mut detail, mut map) = (None, None);
    if let Some(name) = selected {
        let path = format!("/v1/vms/{}", segment(&name));
        let cells = frame::map_cells(area, vms.len());
        // A VM may go between two questions, and one that is not managed has no map.
        detail = client.get(&path).await.ok();
        map = client.get(&format!("{path}/map?cells={cells}")).await.ok();
    }
    Ok(Snapshot {
        status,
        vms,
        detail,
        map,
    })
}

/// An event that the loop waits for.
enum News {
    Key(KeyEvent),
    Resized,
    Asked(Box<Result<Snapshot, ClientError>>),
    Ordered(String),
}

async fn watch(
    client: &Client,
    screen: &mut Screen,
    terminal: &mut ratatui::DefaultTerminal,
    every: Duration,
) -> Result<()> {
    let (sender, mut news) = unbounded_channel();
    let keys = sender.clone();
    std::thread::Builder::new()
        .name("keys".into())
        .spawn(move || read_keys(&keys))?;
    let mut clock = tokio::time::interval(every);
    let mut asking = false;
    loop {
        terminal.draw(|f| frame::draw(screen, f))?;
        let ask_now = tokio::select! {
            _ = clock.tick() => true,
            came = next(&mut news) => match came {
                News::Key(key) => match screen.press(key) {
                    Pressed::Quit => return Ok(()),
                    Pressed::VmCommand(order) => {
                        tokio::spawn(carry_out(client.clone(), order, sender.clone()));
                        false
                    }
                    Pressed::Moved => true,
                    Pressed::Nothing => false,
                },
                News::Resized => true,
                News::Asked(answer) => {
                    asking = false;
                    screen.take(*answer);
                    false
                }
                News::Ordered(said) => {
                    screen.said = Some(said);
                    true
                }
            },
        };
        if ask_now && !asking {
            asking = true;
            let size = terminal.size()?;
            let area = Rect::new(0, 0, size.width, size.height);
            let (client, selected, sender) =
                (client.clone(), screen.selected.clone(), sender.clone());
            tokio::spawn(async move {
                let answer = ask(&client, selected, area).await;
                // There is no receiver once the operator quit.
                let _ = sender.send(News::Asked(Box::new(answer)));
            });
        }
    }
}

async fn next(news: &mut UnboundedReceiver<News>) -> News {
    match news.recv().await {
        Some(news) => news,
        // The loop holds a sender itself.
        None => std::future::pending().await,
    }
}

/// Reads keys, on a thread of its own: it blocks on the terminal.
fn read_keys(sender: &UnboundedSender<News>) {
    while let Ok(event) = event::read() {
        let news = match event {
            Event::Key(key) if key.kind == KeyEventKind::Press => News::Key(key),
            Event::Resize(..) => News::Resized,
            _ => continue,
        };
        if sender.send(news).is_err() {
            return;
        }
    }
}

/// A command about the selected VM.
#[derive(Debug, PartialEq, Eq)]
pub struct VmCommand {
    /// The path of the command in the API.
    path: String,
    setting: Option<Setting>,
}

async fn carry_out(client: Client, order: VmCommand, sender: UnboundedSender<News>) {
    let answer: Result<Done, _> = match &order.setting {
        Some(setting) => client.post(&order.path, setting).await,
        None => client.post(&order.path, &()).await,
    };
    let said = answer.map_or_else(|error| error.to_string(), |done| done.done);
    let _ = sender.send(News::Ordered(said));
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Pressed {
    /// The program ends.
    Quit,
    /// Another VM is selected.
    Moved,
    /// An order goes to the daemon.
    VmCommand(VmCommand),
    /// There is nothing to ask for.
    Nothing,
}

impl Screen {
    fn press(&mut self, key: KeyEvent) -> Pressed {
        self.said = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => Pressed::Quit,
            KeyCode::Char('q') => Pressed::Quit,
            KeyCode::Esc if !self.help => Pressed::Quit,
            KeyCode::Char('?') | KeyCode::Esc => {
                self.help = !self.help;
                Pressed::Nothing
            }
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Char('p') => self.order(|vm| {
                let what = if vm.mode == Mode::Paused {
                    "resume"
                } else {
                    "pause"
                };
                (what, None)
            }),
            KeyCode::Char('m') => self.order(|vm| {
                let value = if vm.moves { "off" } else { "on" }.to_owned();
                let key = "moves".to_owned();
                ("set", Some(Setting { key, value }))
            }),
            KeyCode::Char('r') => self.order(|_| ("round", None)),
            _ => Pressed::Nothing,
        }
    }

    fn step(&mut self, by: isize) -> Pressed {
        let vms = self.vms();
        let Some(now) = frame::select(vms, self.selected.as_deref()) else {
            return Pressed::Nothing;
        };
        let to = now.saturating_add_signed(by).min(vms.len() - 1);
        self.selected = Some(vms[to].name.clone());
        Pressed::Moved
    }

    fn order(&mut self, what: impl Fn(&Vm) -> (&'static str, Option<Setting>)) -> Pressed {
        let vms = self.vms();
        let Some(i) = frame::select(vms, self.selected.as_deref()) else {
            return Pressed::Nothing;
        };
        let (action, setting) = what(&vms[i]);
        let path = format!("/v1/vms/{}/{action}", segment(&vms[i].name));
        Pressed::VmCommand(VmCommand { path, setting })
    }
}
