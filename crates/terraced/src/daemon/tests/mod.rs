mod gathers;
mod in_force;
mod recorded;
mod served;
mod with_an_agent;
