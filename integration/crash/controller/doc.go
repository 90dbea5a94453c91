// Package controller holds the controller's part of the crash lane: it kills the
// controller in every state of its records and between every two steps that leave
// a trace, its own or the host's, and strikes everybody and everything else at
// the controller's. What died starts again, the jobs end, and an audit follows:
// every job ended exactly once, no work ran twice, service and store have the
// same attempts and the same terminal bytes, the host is clean, the store is
// whole, a controller that lived through it holds no more than before.
//
//	points \ faults      kill  agent  containerd  service  shim  a reply  engine    write, sync,  disk
//	                                                             lost     time-out  name's sync   full
//	record.start_pending  x     x      x           x       -     x        x         x             x
//	starter.sending       x     x      x           x       -     x        x         x             x
//	starter.sent          x     x      x           x       -     x        x         x             x
//	record.acknowledged   x     x      x           x       -     x        x         x             x
//	executor.proposed     x     x      x           x       -     x        x         x             x
//	executor.allocated    x     x      x           x       x     x        a         x             x
//	… once prepared (#3)  x     x      x           x       x     x        x         x             x
//	executor.entered      x     x      x           x       x     x        x         x             x
//	executor.answered     x     x      x           x       x     x        x         x             x
//	executor.outcome      x     x      x           x       x     x        x         x             x
//	lane.replacement      s     x      x           x       -     x        x         x             x
//	record.terminal_…     x     x      x           x       x     x        x         x             x
//	… pending
//	retirement.*          x     x      x           x       a     x        a         x             x
//	publisher.sent        x     x      x           x       -     x        -         x             x
//	record.terminal_…     x     x      x           x       -     x        -         x             x
//	… confirmed
//	maintenance.*         x     x      x           x       -     x        -         x             x
//	record.ended          s
//	record.suppressed     s
//	record.terminal_held  s
//	the agent's           x     its own matrix, with all faults, is in integration/crash
//
//	x  a row: of TestMatrix, of TestKillAtEveryPoint where the controller is killed
//	s  a story of its own
//	-  nothing is there to be struck: no worker, or no call that is still to come
//	a  the agent does not wait for the controller there, and may have gone past it;
//	   its own matrix strikes it between the same steps
//
// "A reply lost" is two columns: the service's reply to the point's next request,
// and the agent's to the next one with an effect. The attempt store's writes fail
// by an error that its file layer is given at the point, because no file system
// can be made to fail at one write on demand; everything else is struck for real.
// The disk is full to its last block until the job has ended.
//
// A run of the lane takes one of sixteen parts of the matrix, make crash-all all
// of it.
package controller
