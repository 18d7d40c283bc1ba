-- YCSB's workload A for sysbench: half reads, half updates, of rows of 1 KB that a Zipf distribution chooses.
sysbench.cmdline.options = {
    tables = {"Not used", 1},
    table_size = {"Number of rows", 20000},
}

local COLUMNS = 10
local THETA = 0.99

-- Row k is chosen about as often as 1 / k^THETA: the approximation of Gray and others (SIGMOD 1994).
local function zipf(rows)
    local sum = 0
    for k = 1, rows do sum = sum + 1 / k ^ THETA end
    local eta = (1 - (2 / rows) ^ (1 - THETA)) / (1 - (1 + 0.5 ^ THETA) / sum)
    return function()
        local u = sysbench.rand.uniform(0, 999999) / 1e6
        if u * sum < 1 then return 1 end
        if u * sum < 1 + 0.5 ^ THETA then return 2 end
        return math.min(rows, 1 + math.floor(rows * (eta * u - eta + 1) ^ (1 / (1 - THETA))))
    end
end

function prepare()
    local connection = sysbench.sql.driver():connect()
    local columns = ""
    for n = 0, COLUMNS - 1 do columns = columns .. ", f" .. n .. " CHAR(100) NOT NULL" end
    connection:query("CREATE TABLE usertable (k INT PRIMARY KEY" .. columns .. ")")
    connection:bulk_insert_init("INSERT INTO usertable VALUES")
    local values = string.rep(", '" .. string.rep("y", 100) .. "'", COLUMNS)
    for k = 1, sysbench.opt.table_size do connection:bulk_insert_next("(" .. k .. values .. ")") end
    connection:bulk_insert_done()
end

function thread_init()
    connection = sysbench.sql.driver():connect()
    row = zipf(sysbench.opt.table_size)
end

function event()
    local k = row()
    if sysbench.rand.uniform(0, 1) == 0 then
        connection:query("SELECT * FROM usertable WHERE k = " .. k)
    else
        local column = sysbench.rand.uniform(0, COLUMNS - 1)
        local value = sysbench.rand.string(string.rep("@", 100))
        connection:query("UPDATE usertable SET f" .. column .. " = '" .. value .. "' WHERE k = " .. k)
    end
end

function thread_done()
    connection:disconnect()
end
