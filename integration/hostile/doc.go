// Package hostile holds the tests that run the whole agent against those who
// wish it ill: workers that misbehave in every way, callers that abuse its
// socket, and an engine that hangs, loses replies or goes away. What the agent
// does with peers that behave is integration/engine's.
package hostile
