// Package soak runs many jobs through a network that loses, repeats and breaks
// exchanges on both of the controller's sides, while controller, job service and
// host agent are killed at random, and then compares what all of them say.
//
//	make soak JOBS=1000 SEED=7
//
// A seed chooses the faults, the victims and the pauses between them; what they
// meet depends on the machine, so a seed does not repeat a run to the byte. It
// owns no machinery: sites, proxies and the audit are package controllertest's.
package soak
