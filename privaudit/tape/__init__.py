"""Record and replay everything random in a user's model: the engine's heart."""

from privaudit.tape.draws import Draw as Draw
from privaudit.tape.draws import Tape as Tape
from privaudit.tape.owners import readable as readable
from privaudit.tape.recorder import Recorder as Recorder
from privaudit.tape.tracer import DropSite as DropSite
from privaudit.tape.tracer import Op as Op
from privaudit.tape.tracer import StopTrace as StopTrace
from privaudit.tape.tracer import Tracer as Tracer
from privaudit.tape.tracer import same_data as same_data
